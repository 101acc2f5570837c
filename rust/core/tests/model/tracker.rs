//! The admission tracker: how often which key was offered.

use crate::reference::Key;

#[derive(Clone, Debug)]
pub(crate) struct TrackerModel {
    threshold: u32,
    max: usize,
    /// Offered longest ago first.
    offers: Vec<(Key, u32)>,
}

impl TrackerModel {
    pub(crate) fn new(threshold: u32, max: usize) -> Self {
        Self {
            threshold,
            max,
            offers: Vec::new(),
        }
    }

    /// A known key counts as often as the call names it, a new one once. A new key pushes the one
    /// offered longest ago out, but none of this call.
    pub(crate) fn offer(&mut self, keys: &[Key]) {
        if self.threshold <= 1 {
            return;
        }
        for key in keys {
            if let Some(at) = self.offers.iter().position(|(it, _)| it == key) {
                let (key, count) = self.offers.remove(at);
                self.offers.push((key, count + 1));
            }
        }
        for key in keys {
            if self.offers.iter().any(|(it, _)| it == key) {
                continue;
            }
            if self.offers.len() == self.max {
                let Some(oldest) = self.offers.iter().position(|(it, _)| !keys.contains(it)) else {
                    continue;
                };
                self.offers.remove(oldest);
            }
            self.offers.push((key.clone(), 1));
        }
    }

    pub(crate) fn admits(&self, key: &Key) -> bool {
        let enough = |&(ref it, count): &(Key, u32)| it == key && count >= self.threshold;
        self.threshold <= 1 || self.offers.iter().any(enough)
    }
}
