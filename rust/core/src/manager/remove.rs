//! `drop_keys`: these will not come back.

use super::Manager;
use crate::error::KeyError;
use crate::event::EventKind;
use crate::index::Found;
use crate::key::{KeyList, Keys};

impl Manager {
    /// "These keys will not come back": each leaves now if nobody holds it, else as soon as nobody
    /// does, and is not remembered as a ghost. Returns how many left now. A chunk that is being
    /// stored leaves when its store ends, without having been there. Offering a key again takes the
    /// mark back.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if a key cannot be held; nothing is dropped then.
    pub fn drop_keys(&mut self, keys: Keys<'_>) -> Result<usize, KeyError> {
        keys.check(self.shared.key_bytes)?;
        self.settle_readers();
        let mut found = std::mem::take(&mut self.scratch.found);
        self.find_all(keys, &mut found);
        let mut gone = KeyList::default();
        for found in &found {
            let Found::Slot(slot, seen) = *found else {
                continue;
            };
            let now = crate::slot::state::load(self.records().state(slot));
            if now.generation() != seen.generation() {
                // Named twice, and gone already.
                continue;
            }
            let free = found.is_ready() && self.owner_pins[slot as usize] == 0;
            if !(free && self.try_remove(slot, &mut gone)) {
                self.set_dropped(slot, true);
            }
        }
        self.scratch.found = found;
        let dropped = gone.len();
        self.counters.dropped += dropped as u64;
        self.emit(EventKind::Removed, gone);
        self.publish();
        Ok(dropped)
    }
}
