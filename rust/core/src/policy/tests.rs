//! What choosing victims costs, in chunks proposed: a count that no clock can blur.

use super::*;

const VICTIMS: usize = 16;

/// A policy with `held` chunks that nobody may propose, older than `open` ones that may be.
fn policy(kind: PolicyKind, held: u32, open: u32) -> Box<dyn Policy> {
    let mut policy = build(kind, held + open).expect("fits memory");
    for slot in 0..held + open {
        policy.on_insert(slot, slot.into());
        policy.set_evictable(slot, slot >= held);
        // Every second one in T2, where there is one.
        policy.on_finish(
            slot,
            if slot % 2 == 0 {
                Access::Reused
            } else {
                Access::Inserted
            },
        );
    }
    policy
}

#[test]
fn as_many_chunks_are_proposed_as_leave_however_many_are_held() {
    for kind in PolicyKind::ALL {
        for held in [0, 1, 1000, 250_000] {
            let mut policy = policy(kind, held, 100);
            let (mut proposed, mut victims) = (0, Vec::new());
            let found = policy.select(
                VICTIMS,
                &mut |slot| {
                    proposed += 1;
                    assert!(slot >= held, "a held chunk is proposed");
                    true
                },
                &mut victims,
            );
            assert!(found);
            assert_eq!(
                (proposed, victims.len()),
                (VICTIMS, VICTIMS),
                "{kind}, {held} held"
            );
        }
    }
}

#[test]
fn a_chunk_that_cannot_be_claimed_is_proposed_once_until_it_is_free_again() {
    for kind in PolicyKind::ALL {
        let mut policy = policy(kind, 0, 1000);
        let by_reader = |slot: u32| slot < 700;
        let select = |policy: &mut Box<dyn Policy>| {
            let (mut proposed, mut victims) = (0, Vec::new());
            let claim = &mut |slot| {
                proposed += 1;
                !by_reader(slot)
            };
            assert!(policy.select(VICTIMS, claim, &mut victims));
            for &slot in &victims {
                policy.on_evict(slot, slot.into());
            }
            proposed
        };
        let met = select(&mut policy) - VICTIMS;
        assert!((350..=700).contains(&met), "{kind} met {met} of 700");
        let rest = select(&mut policy) + select(&mut policy) - 2 * VICTIMS;
        assert!(met + rest <= 700, "{kind} met one twice");
        for slot in 0..700 {
            policy.set_evictable(slot, true);
        }
        assert_eq!(policy.evictable() as usize, 1000 - 3 * VICTIMS);
    }
}

#[test]
fn a_call_that_cannot_succeed_proposes_nothing_that_is_held() {
    for kind in PolicyKind::ALL {
        let mut policy = policy(kind, 1000, 3);
        let (mut proposed, mut victims) = (0, Vec::new());
        let claim = &mut |_| {
            proposed += 1;
            true
        };
        assert!(!policy.select(4, claim, &mut victims));
        assert_eq!(
            (proposed, victims.len()),
            (3, 3),
            "they are the caller's to give back"
        );
        victims
            .iter()
            .for_each(|&slot| policy.set_evictable(slot, true));
        assert_eq!(policy.evictable(), 3);
        policy.check_invariants().expect("invariants hold");
    }
}
