//! Which slots and blocks jobs in flight read or write.
//!
//! One word for each slot and each block: free, written by one job, read by some, or never to be
//! used again. A job takes all that it needs, or nothing.
//!
//! Cost: O(slots and blocks of the job), one access each.

use super::layout::KvLayout;
use super::plan::{Direction, Transfer};

const FREE: u32 = 0;
const POISONED: u32 = u32::MAX;
const WRITTEN: u32 = u32::MAX - 1;

/// What a job uses, as the numbers of slots and of blocks; blocks of all classes are numbered
/// through.
#[derive(Debug)]
pub(super) struct Uses {
    direction: Direction,
    slots: Box<[u64]>,
    blocks: Box<[u64]>,
}

/// A slot or a block that a job cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) unit: Unit,
    pub(super) poisoned: bool,
}

/// A slot, or a block by the number that it has among those of all classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Slot(u64),
    Block(u64),
}

impl Uses {
    /// Of a transfer that has been planned.
    pub(super) fn of(transfer: &Transfer<'_>, layout: &KvLayout) -> Self {
        let groups = transfer.group_sizes.iter().enumerate();
        let firsts =
            groups.flat_map(|(group, &size)| std::iter::repeat_n(layout.first_unit(group), size));
        let blocks = firsts.zip(transfer.block_ids);
        Self {
            direction: transfer.direction,
            slots: transfer
                .slots
                .iter()
                .map(|slot| slot.cast_unsigned())
                .collect(),
            blocks: blocks
                .map(|(first, id)| first + id.cast_unsigned())
                .collect(),
        }
    }

    pub(super) fn uses(&self, unit: Unit) -> bool {
        match unit {
            Unit::Slot(slot) => self.slots.contains(&slot),
            Unit::Block(block) => self.blocks.contains(&block),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Conflicts {
    slots: Words,
    blocks: Words,
}

impl Conflicts {
    pub(super) fn new(layout: &KvLayout) -> Self {
        Self {
            slots: Words::new(layout.slots()),
            blocks: Words::new(layout.block_classes().iter().sum()),
        }
    }

    /// Takes all that a job uses, or nothing.
    pub(super) fn take(&mut self, uses: &Uses) -> Result<(), Taken> {
        let slots = self
            .slots
            .take(&uses.slots, uses.direction == Direction::Store);
        slots.map_err(|(slot, poisoned)| Taken {
            unit: Unit::Slot(slot),
            poisoned,
        })?;
        let blocks = self
            .blocks
            .take(&uses.blocks, uses.direction == Direction::Load);
        blocks.map_err(|(block, poisoned)| {
            self.slots.give_back(&uses.slots);
            Taken {
                unit: Unit::Block(block),
                poisoned,
            }
        })
    }

    pub(super) fn give_back(&mut self, uses: &Uses) {
        self.slots.give_back(&uses.slots);
        self.blocks.give_back(&uses.blocks);
    }

    /// Takes what a job used out of use for good. Returns how many slots and blocks that are.
    pub(super) fn poison(&mut self, uses: &Uses) -> (u64, u64) {
        (
            self.slots.poison(&uses.slots),
            self.blocks.poison(&uses.blocks),
        )
    }

    pub(super) fn is_free(&self, unit: Unit) -> bool {
        let (words, number) = match unit {
            Unit::Slot(slot) => (&self.slots, slot),
            Unit::Block(block) => (&self.blocks, block),
        };
        words.get(number) == Some(FREE)
    }
}

#[derive(Debug)]
struct Words(Vec<u32>);

impl Words {
    fn new(count: u64) -> Self {
        let count = usize::try_from(count).expect("what lies in memory can be counted");
        Self(vec![FREE; count])
    }

    fn get(&self, number: u64) -> Option<u32> {
        self.0.get(place(number)).copied()
    }

    fn take(&mut self, numbers: &[u64], write: bool) -> Result<(), (u64, bool)> {
        for (at, &number) in numbers.iter().enumerate() {
            let word = &mut self.0[place(number)];
            if write && *word == FREE {
                *word = WRITTEN;
            } else if !write && *word < WRITTEN - 1 {
                *word += 1;
            } else {
                let poisoned = *word == POISONED;
                self.give_back(&numbers[..at]);
                return Err((number, poisoned));
            }
        }
        Ok(())
    }

    fn give_back(&mut self, numbers: &[u64]) {
        for &number in numbers {
            let word = &mut self.0[place(number)];
            match *word {
                // One that another job of quarantine has poisoned since stays so.
                POISONED => {}
                WRITTEN => *word = FREE,
                _ => *word -= 1,
            }
        }
    }

    fn poison(&mut self, numbers: &[u64]) -> u64 {
        let mut fresh = 0;
        for &number in numbers {
            let word = &mut self.0[place(number)];
            fresh += u64::from(*word != POISONED);
            *word = POISONED;
        }
        fresh
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number).expect("what lies in memory can be counted")
}
