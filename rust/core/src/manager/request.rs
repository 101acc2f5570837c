//! `begin_request` and `finish_request`: one request is one access.

use super::Manager;
use crate::access::RequestAccess;
use crate::error::AccessError;
use crate::index::Found;
use crate::key::Keys;

impl Manager {
    /// Begins the record of one request at `now_us` of the caller's clock.
    ///
    /// `gpu_hit` is how many leading keys the accelerator's own prefix cache serves; policies that
    /// learn from reuse need it, LRU and ARC do not. Positions are told with
    /// [`RequestAccess::set_positions`], for all keys now or as they come.
    #[must_use]
    pub fn begin_request(&mut self, now_us: u64, gpu_hit: usize) -> RequestAccess {
        self.advance_to(now_us);
        let lengths = (self.shared.key_bytes, self.group_bytes);
        let hasher = self.shared.storage.hasher;
        RequestAccess::new(
            self.shared.incarnation,
            self.counters.epoch,
            hasher,
            lengths,
            gpu_hit,
        )
    }

    /// Applies what a request did, once, tail to head across all groups: a chunk that it reused is
    /// one hit (ARC: T1 → T2), a chunk that it stored itself regains its place in the order. An
    /// aborted request finishes like any other.
    ///
    /// `output_tokens` is how much the request generated; policies that learn from it need it, LRU
    /// and ARC do not.
    ///
    /// # Errors
    ///
    /// [`AccessError`] if another engine made the access; nothing is applied then.
    pub fn finish_request(
        &mut self,
        mut access: RequestAccess,
        output_tokens: Option<u64>,
    ) -> Result<(), AccessError> {
        self.enter(&mut access)?;
        let _ = output_tokens;
        self.settle_readers();
        access.sort();
        let mut found = std::mem::take(&mut self.scratch.found);
        self.find_all(Keys::seen_by(&access), &mut found);
        for (i, found) in found.iter().enumerate().rev() {
            if let Found::Slot(slot, _) = *found
                && self.policy.on_finish(slot, access.use_of(i))
            {
                self.stamp(slot);
            }
        }
        self.scratch.found = found;
        self.publish();
        Ok(())
    }
}
