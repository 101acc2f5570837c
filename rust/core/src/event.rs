//! What changed in the tier, for whoever mirrors it: a router, a log, a test.

use crate::key::KeyList;

/// What happened to the keys of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// They can be loaded from now on.
    Stored,
    /// They have left.
    Removed,
    /// Everything has left, by a reset. The event names no keys.
    Cleared,
}

/// One change of the tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// To which keys, in the order of their leaving or of the store.
    pub keys: KeyList,
}

/// What [`crate::Manager::take_events`] gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// In causal order.
    pub events: Vec<Event>,
    /// How many further events did not fit since the last call. All of them came after `events`: a
    /// mirror that sees this above zero must start again.
    pub lost: u64,
}

/// Events since the last call, bounded by the number of their keys.
#[derive(Debug)]
pub(crate) struct EventQueue {
    queued: Events,
    keys: usize,
    max_keys: usize,
}

impl EventQueue {
    pub(crate) fn new(max_keys: usize) -> Self {
        Self {
            queued: Events::default(),
            keys: 0,
            max_keys,
        }
    }

    /// Queues an event, or counts it as lost; once one is lost, all are until the next call or
    /// reset, so that what was queued has no gap. Returns whether it was queued.
    pub(crate) fn push(&mut self, kind: EventKind, keys: KeyList) -> bool {
        if self.queued.lost > 0 || self.keys + keys.len() > self.max_keys {
            self.queued.lost += 1;
            return false;
        }
        self.keys += keys.len();
        self.queued.events.push(Event { kind, keys });
        true
    }

    /// Queues the one event after which none before it matters: where it does not fit, it takes
    /// their place. Returns how many that were.
    pub(crate) fn push_cleared(&mut self) -> usize {
        let mut replaced = 0;
        // It counts as one key, so that resets alone cannot make the queue grow without a bound.
        if self.queued.lost > 0 || self.keys >= self.max_keys {
            replaced = std::mem::take(&mut self.queued).events.len();
            self.keys = 0;
        }
        self.keys += 1;
        self.queued.events.push(Event {
            kind: EventKind::Cleared,
            keys: KeyList::default(),
        });
        replaced
    }

    pub(crate) fn take(&mut self) -> Events {
        self.keys = 0;
        std::mem::take(&mut self.queued)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
