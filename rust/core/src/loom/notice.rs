//! Notices: no last unpin is lost, whenever the owner drains.

use loom::thread;

use super::models;
use crate::notice::Notices;
use crate::shared::unpin_and_notify;
use crate::slot::state::{self, Phase};
use crate::storage::Records;
use crate::sync::Arc;

const LOST: &str = "a notice was lost";
const TWICE: &str = "a notice was taken twice";

models! {
    every_notice_is_taken_whenever_the_owner_drains: 3, 1_000, [
        NoticeSummaryLate => LOST,
        NoticeSummaryFirst => LOST,
    ];
    a_notice_shows_the_unpin_before_it: 3, 700, [
        NoNotice => LOST,
        NotifyRelaxed => LOST,
        TakeRelaxed => LOST,
    ];
}

/// Two words of slots below a summary. Two notices share a word.
fn every_notice_is_taken_whenever_the_owner_drains() {
    const SLOTS: [u32; 3] = [0, 1, 64];
    let notices = Arc::new(Notices::new(65).unwrap());
    let spawn = |slots: &'static [u32]| {
        let notices = Arc::clone(&notices);
        thread::spawn(move || slots.iter().for_each(|&slot| notices.notify(slot)))
    };
    let readers = [spawn(&SLOTS[..1]), spawn(&SLOTS[1..])];
    let mut taken = Vec::new();
    notices.drain(|slot| taken.push(slot));
    readers.into_iter().for_each(|r| r.join().unwrap());
    notices.drain(|slot| taken.push(slot));
    taken.sort_unstable();
    let mut once = taken.clone();
    once.dedup();
    assert_eq!(once, taken, "{TWICE}");
    assert_eq!(taken, SLOTS, "{LOST}");
}

/// Two draining slots, each held by one reader, and an owner that frees what a notice names once
/// nobody holds it.
fn a_notice_shows_the_unpin_before_it() {
    let shared = Arc::new((Records::new(2, 8).unwrap(), Notices::new(2).unwrap()));
    for slot in 0..2 {
        let word = shared.0.state(slot);
        let generation = state::begin_store(word);
        state::publish(word, generation);
        state::try_pin(word, generation);
        assert!(state::drain_pinned(word));
    }
    let readers = [0, 1].map(|slot| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            unpin_and_notify(&shared.0, &shared.1, slot, 0);
        })
    });
    let mut freed = Vec::new();
    let mut settle = |slot| {
        let state = state::load(shared.0.state(slot));
        if state.phase() == Phase::Draining && state.pins() == 0 {
            state::free(shared.0.state(slot));
            freed.push(slot);
        }
    };
    shared.1.drain(&mut settle);
    readers.into_iter().for_each(|r| r.join().unwrap());
    shared.1.drain(&mut settle);
    freed.sort_unstable();
    assert_eq!(freed, [0, 1], "{LOST}");
}
