//! The queue of events and its bound.

use super::*;

fn keys(n: usize) -> KeyList {
    let mut keys = KeyList::default();
    (0..n).for_each(|_| keys.push(b"key"));
    keys
}

fn kinds(events: &Events) -> Vec<(EventKind, usize)> {
    let parts = |event: &Event| (event.kind, event.keys.len());
    events.events.iter().map(parts).collect()
}

#[test]
fn what_was_queued_is_taken_once_in_order() {
    let mut queue = EventQueue::new(10);
    assert!(queue.push(EventKind::Stored, keys(4)));
    assert!(queue.push(EventKind::Removed, keys(6)));
    let taken = queue.take();
    let expected = [(EventKind::Stored, 4), (EventKind::Removed, 6)];
    assert_eq!((kinds(&taken), taken.lost), (expected.to_vec(), 0));
    assert_eq!(queue.take(), Events::default());
    assert!(
        queue.push(EventKind::Stored, keys(10)),
        "there is room again"
    );
}

#[test]
fn after_a_loss_everything_is_lost_until_it_is_taken() {
    let mut queue = EventQueue::new(5);
    assert!(queue.push(EventKind::Stored, keys(3)));
    assert!(!queue.push(EventKind::Removed, keys(3)));
    assert!(
        !queue.push(EventKind::Stored, keys(1)),
        "it would fit, and leave a gap"
    );
    let taken = queue.take();
    assert_eq!(
        (kinds(&taken), taken.lost),
        (vec![(EventKind::Stored, 3)], 2)
    );
    assert!(queue.push(EventKind::Stored, keys(1)));
    assert_eq!(queue.take().lost, 0);
}

#[test]
fn a_cleared_event_takes_the_place_of_what_it_makes_void_only_where_it_has_no_room() {
    let mut queue = EventQueue::new(3);
    assert!(queue.push(EventKind::Stored, keys(2)));
    assert_eq!(queue.push_cleared(), 0);
    assert!(!queue.push(EventKind::Stored, keys(1)), "three are there");
    // It was lost, and so it matters no more than the two that were not.
    assert_eq!(queue.push_cleared(), 2);
    assert!(queue.push(EventKind::Stored, keys(2)));
    assert_eq!(queue.push_cleared(), 2);
    let taken = queue.take();
    assert_eq!(
        (kinds(&taken), taken.lost),
        (vec![(EventKind::Cleared, 0)], 0)
    );
}

#[test]
fn a_bound_of_nothing_still_tells_that_all_is_cleared() {
    let mut queue = EventQueue::new(0);
    assert!(!queue.push(EventKind::Stored, keys(1)));
    assert_eq!(queue.push_cleared(), 0);
    assert_eq!(queue.push_cleared(), 1);
    assert_eq!(kinds(&queue.take()), [(EventKind::Cleared, 0)]);
}
