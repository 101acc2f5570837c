//! Tickets: what a completion names, so that it acts on the very slots it was made for.

/// The slots of one store, in the order of the keys to store.
///
/// It is given back to [`crate::Manager::complete_store`] once the transfer has ended, in success
/// or not. A ticket that is dropped leaves its chunks pending until they expire or a reset comes.
#[derive(Debug)]
#[must_use = "a store that is never completed keeps its slots pending"]
pub struct StoreTicket(pub(crate) Ticket);

/// The pinned slots of one load: `slots()[i]` belongs to key `i` of the call.
///
/// It is given back to [`crate::Manager::complete_load`] once the transfer has ended. A ticket that
/// is dropped leaves its chunks pinned until the next reset.
#[derive(Debug)]
#[must_use = "a load that is never completed keeps its slots pinned"]
pub struct LoadTicket(pub(crate) Ticket);

#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) incarnation: u64,
    pub(crate) slots: Vec<u32>,
    pub(crate) generations: Vec<u32>,
}

impl Ticket {
    pub(crate) fn new(incarnation: u64, capacity: usize) -> Self {
        let (slots, generations) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        Self {
            incarnation,
            slots,
            generations,
        }
    }

    pub(crate) fn push(&mut self, slot: u32, generation: u32) {
        self.slots.push(slot);
        self.generations.push(generation);
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, u32)> + '_ {
        self.slots
            .iter()
            .copied()
            .zip(self.generations.iter().copied())
    }
}

impl StoreTicket {
    /// The slots to write, one for each key to store.
    #[must_use]
    pub fn slots(&self) -> &[u32] {
        &self.0.slots
    }
}

impl LoadTicket {
    /// The slots to read, one for each key of the call.
    #[must_use]
    pub fn slots(&self) -> &[u32] {
        &self.0.slots
    }
}

/// What a completion did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// Slots that it acted on.
    pub applied: usize,
    /// Slots that had changed hands, or were completed before: counted, otherwise ignored.
    pub late: usize,
}
