//! The bitmap tree against an ordered set.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Applies `steps` of (integer, kind) to tree and model, and compares each answer.
fn run(bits: u32, steps: &[(u32, u8)], check_every: usize) -> Result<(), TestCaseError> {
    let mut tree = BitTree::new(bits).expect("a small tree fits memory");
    let mut model = BTreeSet::new();
    for (step, &(entropy, kind)) in steps.iter().enumerate() {
        let i = entropy % bits;
        match kind % 16 {
            0..=6 => prop_assert_eq!(tree.set(i), model.insert(i)),
            7..=12 => prop_assert_eq!(tree.clear(i), model.remove(&i)),
            13 if entropy % 512 < 2 => {
                tree.clear_all();
                model.clear();
            }
            // Emptying from the front is what an evicting owner does.
            _ => {
                let first = model.pop_first();
                prop_assert_eq!(tree.first_from(0), first);
                if let Some(first) = first {
                    prop_assert!(tree.clear(first));
                }
            }
        }
        prop_assert_eq!(tree.get(i), model.contains(&i));
        for from in [0, i, i + 1, bits - 1, bits, u32::MAX] {
            prop_assert_eq!(tree.first_from(from), model.range(from..).next().copied());
        }
        if step % check_every == 0 {
            prop_assert_eq!(tree.check_invariants(), Ok(()));
            prop_assert_eq!(tree.count() as usize, model.len());
        }
    }
    prop_assert_eq!(tree.check_invariants(), Ok(()));
    Ok(())
}

proptest! {
    #[test]
    fn one_word_answers_as_an_ordered_set(
        bits in 1u32..=64,
        steps in proptest::collection::vec(any::<(u32, u8)>(), 0..600),
    ) {
        run(bits, &steps, 1)?;
    }

    #[test]
    fn two_and_three_levels_answer_as_an_ordered_set(
        bits in 65u32..10_000,
        steps in proptest::collection::vec(any::<(u32, u8)>(), 0..600),
    ) {
        run(bits, &steps, 1)?;
    }

    #[test]
    fn four_levels_answer_as_an_ordered_set(
        bits in 262_145u32..1_000_000,
        steps in proptest::collection::vec(any::<(u32, u8)>(), 0..600),
    ) {
        run(bits, &steps, 200)?;
    }
}

#[test]
fn every_length_near_a_level_boundary_holds_its_last_bit() {
    for bits in [
        1, 63, 64, 65, 127, 128, 4095, 4096, 4097, 262_143, 262_144, 262_145,
    ] {
        let mut tree = BitTree::new(bits).expect("a small tree fits memory");
        assert_eq!(tree.first_from(0), None);
        assert!(tree.set(bits - 1));
        assert_eq!(tree.first_from(0), Some(bits - 1), "{bits} bits");
        assert_eq!(tree.check_invariants(), Ok(()));
        assert!(!tree.set(bits - 1) && tree.clear(bits - 1) && !tree.clear(bits - 1));
        assert_eq!(tree.first_from(0), None);
        assert_eq!(tree.check_invariants(), Ok(()));
    }
}

#[test]
fn an_empty_range_has_no_members_and_no_memory() {
    let mut tree = BitTree::new(0).expect("nothing fits memory");
    assert_eq!(
        (tree.first_from(0), tree.get(0), tree.count()),
        (None, false, 0)
    );
    tree.clear_all();
    assert_eq!((tree.memory_bytes(), tree.check_invariants()), (0, Ok(())));
}

#[test]
fn memory_is_a_sixty_third_more_than_the_bits() {
    let tree = BitTree::new(3 << 20).expect("3 M bits fit memory");
    let bits = f64::from(3 << 20);
    let bytes = f64::from(u32::try_from(tree.memory_bytes()).expect("a small tree"));
    assert!(bytes / bits < 0.1270, "{bytes} bytes");
}

#[test]
fn a_bit_beyond_the_bound_changes_nothing() {
    for change in [BitTree::set, BitTree::clear] {
        let mut tree = BitTree::new(70).expect("a small tree fits memory");
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change(&mut tree, 70)));
        assert_eq!(outcome.ok(), (!cfg!(debug_assertions)).then_some(false));
        assert_eq!((tree.count(), tree.check_invariants()), (0, Ok(())));
    }
}

/// What the check says of a tree of 70 bits with bit 69 set, after `harm`.
fn verdict(harm: impl FnOnce(&mut BitTree)) -> String {
    let mut tree = BitTree::new(70).expect("a small tree fits memory");
    tree.set(69);
    assert_eq!(tree.check_invariants(), Ok(()));
    harm(&mut tree);
    tree.check_invariants()
        .expect_err("the harm breaks an invariant")
}

#[test]
fn the_check_sees_a_summary_that_lags() {
    assert!(verdict(|tree| tree.words[1] = 0).starts_with("bitmap 1"));
    assert!(verdict(|tree| tree.words[0] = 1).starts_with("bitmap 1"));
}

#[test]
fn the_check_sees_a_bit_beyond_the_length() {
    assert!(verdict(|tree| tree.words[1] |= 1 << 63).starts_with("bitmap 2"));
    assert!(verdict(|tree| tree.words[2] |= 1 << 2).starts_with("bitmap 2"));
}

#[test]
fn the_check_sees_a_missing_top_level() {
    assert!(verdict(|tree| tree.levels = 1).starts_with("bitmap 3"));
}
