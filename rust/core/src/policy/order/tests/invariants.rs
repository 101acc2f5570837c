//! The invariant check sees each kind of damage.

use super::*;

/// What the check says of an order in mid-compaction after `harm`.
fn verdict(harm: impl FnOnce(&mut TouchOrder)) -> String {
    let mut order = TouchOrder::new(40, 2).expect("a small order fits memory");
    (0..40).for_each(|slot| order.insert(slot, 0, true));
    order.touch(39, 1);
    for entropy in sequence(5) {
        if order.compacting && order.read.at > order.write.at + 2 {
            break;
        }
        order.touch(1 + entropy % 38, 0);
    }
    assert_eq!(order.check_invariants(), Ok(()));
    harm(&mut order);
    order
        .check_invariants()
        .expect_err("the harm breaks an invariant")
}

#[test]
fn the_check_sees_a_slot_that_is_not_at_its_position() {
    assert!(verdict(|order| order.pos[0] = UNLISTED).starts_with("order 1"));
    assert!(verdict(|order| order.pos.swap(1, 2)).starts_with("order 1"));
    let harm = |order: &mut TouchOrder| {
        let at = order.pos[0];
        order.ring[at as usize] = EMPTY;
        order.bits[0].clear(at);
    };
    assert!(verdict(harm).starts_with("order 1"));
}

#[test]
fn the_check_sees_an_occupied_position_outside_the_window() {
    let harm = |order: &mut TouchOrder| order.ring[order.write.index as usize] = pack(0, 0);
    assert!(verdict(harm).starts_with("order 2"));
    let harm = |order: &mut TouchOrder| order.ring[order.head.index as usize] = pack(0, 0);
    assert!(verdict(harm).starts_with("order 2"));
}

#[test]
fn the_check_sees_cursors_out_of_order_or_out_of_place() {
    assert!(
        verdict(|order| std::mem::swap(&mut order.write, &mut order.read)).starts_with("order 2")
    );
    assert!(verdict(|order| order.head.index += 1).starts_with("order 2"));
}

#[test]
fn the_check_sees_wrong_evictable_bits_and_counts() {
    let harm = |order: &mut TouchOrder| _ = order.bits[0].set(order.head.index);
    assert!(verdict(harm).starts_with("order 3"));
    let harm = |order: &mut TouchOrder| _ = order.bits[1].set(order.pos[0]);
    assert!(verdict(harm).starts_with("order 3"));
    assert!(verdict(|order| order.evictable[0] -= 1).starts_with("order 3"));
    assert!(verdict(|order| order.len[1] += 1).starts_with("order 3"));
}

#[test]
fn the_check_sees_a_window_that_is_too_long() {
    let harm = |order: &mut TouchOrder| {
        order.compacting = false;
        order.bounds.start = 10;
    };
    assert!(verdict(harm).starts_with("order 4"));
    // A compaction that reads nothing while ten appends come is too late.
    let harm = |order: &mut TouchOrder| {
        order.read = order.tail;
        order.write = order.tail;
        (0..10).for_each(|_| order.head.step(order.bounds.ring));
    };
    assert!(verdict(harm).starts_with("order 4"));
}
