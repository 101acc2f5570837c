//! The worker: transfers what the owner hands it, in order.

use std::sync::mpsc::{Receiver, Sender};

use crate::world::{Sabotage, World};

/// The transfer of one store.
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) slots: Vec<u32>,
    pub(crate) keys: Vec<usize>,
}

/// Transfers until the owner hangs up.
pub(crate) fn work(world: &World, jobs: &Receiver<Job>, done: &Sender<u64>) {
    let mut last = None;
    for Job { id, slots, keys } in jobs {
        slots.iter().for_each(|&slot| world.shadow.poison(slot));
        for (&slot, &key) in slots.iter().zip(&keys) {
            match world.sabotage {
                Sabotage::OtherBytes if id % 64 == 63 => world.shadow.write(slot, key + 1),
                Sabotage::TornBytes if id % 64 == 63 => world.shadow.tear(slot, key),
                _ => world.shadow.write(slot, key),
            }
        }
        if world.sabotage == Sabotage::LateTransfer
            && let Some(slot) = last
        {
            // Belongs to a store that has ended.
            world.shadow.poison(slot);
        }
        last = slots.first().copied();
        if done.send(id).is_err() {
            return;
        }
    }
}
