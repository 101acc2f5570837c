//! In which order jobs start and end, and what their results say.

use kvferry::transfer::{Direction, JobId, Lane};

use crate::script::{Call, Notify, Script, Start};
use crate::world::{
    BLOCKS, Copies, EXPEDITED, End, LOAD, PAGE, STORE, World, end, ids, in_time, options,
};

fn finished<const BLOCKING: bool>(world: &World<BLOCKING>) -> Vec<u64> {
    ids(&world.engine.poll_finished())
}

#[test]
fn jobs_of_a_lane_end_in_the_order_of_their_submits() {
    for way in [STORE, LOAD, EXPEDITED] {
        let world = World::<false>::new(Notify::Wakes);
        for job in 0..4u64 {
            let copies = Copies::at(job.cast_signed());
            world.take(job, way, &copies, Script::MANUAL);
        }
        world.control.finish(2);
        world.control.finish(1);
        assert!(finished(&world).is_empty(), "{way:?}");
        world.control.finish(0);
        assert_eq!(finished(&world), [0, 1, 2], "{way:?}");
        world.control.finish(3);
        assert_eq!(finished(&world), [3], "{way:?}");
        world.control.check();
    }
}

#[test]
fn an_expedited_load_overtakes_loads_and_stores() {
    let world = World::<false>::new(Notify::Wakes);
    for (job, way) in [(0u64, LOAD), (1, STORE), (2, EXPEDITED), (3, EXPEDITED)] {
        let copies = Copies::at(job.cast_signed());
        world.take(job, way, &copies, Script::MANUAL);
    }
    world.control.finish(3);
    world.control.finish(2);
    assert_eq!(finished(&world), [2, 3]);
    world.control.finish(1);
    assert_eq!(finished(&world), [1]);
    world.control.finish(0);
    assert_eq!(finished(&world), [0]);
}

#[test]
fn a_job_whose_start_fails_ends_in_its_turn() {
    for start in [Start::NotStarted, Start::Started, Start::Panics] {
        let world = World::<false>::new(Notify::Wakes);
        let faulty = Script {
            start,
            ..Script::SMOOTH
        };
        world.take(0, LOAD, &Copies::at(0), Script::MANUAL);
        world.take(1, LOAD, &Copies::at(1), faulty);
        world.take(2, LOAD, &Copies::at(2), Script::SMOOTH);
        assert!(finished(&world).is_empty(), "{start:?}");
        world.control.finish(0);
        assert_eq!(finished(&world), [0, 1, 2], "{start:?}");
    }
}

#[test]
fn a_job_that_fails_with_its_copies_over_ends_in_its_turn() {
    for (poll, quiesce) in [
        (Call::Fails, Call::Works),
        (Call::Panics, Call::Works),
        (Call::Fails, Call::Fails),
    ] {
        let world = World::<false>::new(Notify::Wakes);
        let faulty = Script {
            poll,
            quiesce,
            ..Script::SMOOTH
        };
        world.take(0, LOAD, &Copies::at(0), Script::MANUAL);
        world.take(1, LOAD, &Copies::at(1), faulty);
        world.take(2, LOAD, &Copies::at(2), Script::SMOOTH);
        assert!(finished(&world).is_empty(), "{poll:?}");
        world.control.finish(0);
        assert_eq!(finished(&world), [0, 1, 2], "{poll:?}");
    }
}

#[test]
fn as_many_jobs_of_a_lane_run_as_may_and_the_others_follow() {
    let world = World::<false>::with(Notify::Wakes, BLOCKS, options(64, 2));
    for job in 0..5u64 {
        let copies = Copies::at(job.cast_signed());
        world.take(job, STORE, &copies, Script::MANUAL);
    }
    world.take(5, LOAD, &Copies::at(5), Script::MANUAL);
    let stats = world.engine.stats();
    assert_eq!((stats.in_flight, stats.queued), (3, 3));
    assert!(!world.engine.is_idle_slot(4), "it waits, and has its place");
    for job in 0..6u64 {
        world.control.finish(job);
    }
    // Sleeps never: all have come to their end once they are started.
    assert!(world.engine.drain(None));
    let started = world.control.started();
    let stores = [0, 1, 2, 3, 4].map(|job| (Lane::Store, job));
    let of_stores: Vec<_> = started.iter().copied().filter(|it| it.1 != 5).collect();
    assert_eq!(of_stores, stores);
    assert_eq!(started[2], (Lane::Load, 5));
    world.control.check();
}

#[test]
fn a_result_says_what_was_copied_and_hands_the_owner_back_once() {
    let world = World::<false>::new(Notify::Wakes);
    let copies = Copies {
        blocks: [vec![3, 4], vec![9], vec![7]],
        slots: vec![0, 5, 2, 1],
    };
    world.take(11, STORE, &copies, Script::SMOOTH);
    let mut results = world.engine.poll_finished();
    assert_eq!(results.len(), 1);
    let result = results.pop().expect("it has one");
    assert_eq!(result.job, JobId(11));
    assert_eq!(result.direction, Direction::Store);
    let copied = result.outcome.as_ref().expect("it went well");
    assert_eq!(copied.bytes(), 4 * PAGE);
    assert!(copied.seconds() > 0.0);
    assert_eq!(world.owners(), 1);
    drop(result);
    assert_eq!(world.owners(), 0);
    assert!(world.engine.poll_finished().is_empty());
    let stats = world.engine.stats();
    assert_eq!((stats.bytes_stored, stats.bytes_loaded), (4 * PAGE, 0));
}

#[test]
fn a_job_of_no_blocks_ends_in_success() {
    let world = World::<false>::new(Notify::Wakes);
    let nothing = Copies::default();
    world.take(0, LOAD, &nothing, Script::SMOOTH);
    let results = world.engine.poll_finished();
    assert_eq!(end(&results[0]), End::Success);
}

/// A thread of the engine's takes jobs of both directions by age, so that neither starves.
#[test]
fn a_backend_that_blocks_is_given_loads_and_stores_by_age() {
    in_time(|| {
        let world = World::<true>::new(Notify::Wakes);
        let held = Script {
            held: true,
            ..Script::SMOOTH
        };
        let ways = [LOAD, LOAD, STORE, LOAD, STORE, EXPEDITED, LOAD, STORE];
        for (job, way) in (0..).zip(ways) {
            let copies = Copies::at(job);
            world.take(job.cast_unsigned(), way, &copies, held);
            assert_eq!(world.control.wait_until_held(), 0);
        }
        world.control.open();
        assert!(world.engine.drain(None));
        let started: Vec<u64> = world.control.started().iter().map(|it| it.1).collect();
        assert_eq!(started, [0, 5, 1, 2, 3, 4, 6, 7]);
    });
}
