//! A submit that is refused says why, and leaves nothing.

use kvferry::transfer::{Direction, JobId, Place, PlanError, Priority, SubmitError};

use crate::script::{Call, Notify, Script, Start};
use crate::world::{
    BLOCKS, Copies, EXPEDITED, End, LOAD, STORE, Way, World, end, ids, in_time, options,
};

/// What can be seen of an engine.
fn sight<const BLOCKING: bool>(world: &World<BLOCKING>) -> impl PartialEq + std::fmt::Debug {
    let idle = |place| {
        let engine = &world.engine;
        [
            engine.is_idle_slot(place),
            engine.is_idle_block(0, place),
            engine.is_idle_block(1, place),
        ]
    };
    let idle: Vec<_> = (0..BLOCKS).map(idle).collect();
    let control = &world.control;
    (
        world.engine.stats(),
        idle,
        world.owners(),
        control.alive(),
        control.started(),
    )
}

#[test]
fn a_refused_submit_leaves_nothing() {
    let world = World::<false>::with(Notify::Wakes, BLOCKS, options(3, 1));
    let copies = Copies::of(&[0, 1, 2], &[3, 4, 5]);
    world.take(0, LOAD, &copies, Script::MANUAL);
    let lost = Script {
        start: Start::Panics,
        ..Script::SMOOTH
    };
    world.take(1, EXPEDITED, &Copies::at(9), lost);
    let at = |place| Copies::at(place);
    let fails = |fence| Script {
        fence,
        ..Script::SMOOTH
    };
    type Expected = fn(&SubmitError) -> bool;
    let expedited_store: Way = (Direction::Store, Priority::Expedited);
    let unsound = Copies::of(&[6, 7], &[6]);
    let refused: [(u64, Way, Copies, Script, Expected); 9] = [
        (0, LOAD, at(7), Script::SMOOTH, |error| {
            matches!(error, SubmitError::Duplicate(JobId(0)))
        }),
        (1, LOAD, at(7), Script::SMOOTH, |error| {
            matches!(error, SubmitError::Duplicate(JobId(1)))
        }),
        (2, expedited_store, at(7), Script::SMOOTH, |error| {
            matches!(error, SubmitError::ExpeditedStore)
        }),
        (2, LOAD, unsound, Script::SMOOTH, |error| {
            matches!(error, SubmitError::Plan(PlanError::SlotCount { .. }))
        }),
        (
            2,
            LOAD,
            at(7),
            fails(Call::Fails),
            |error| matches!(error, SubmitError::Backend(error) if error.call == "fence"),
        ),
        (
            2,
            LOAD,
            at(7),
            fails(Call::Panics),
            |error| matches!(error, SubmitError::Backend(error) if error.to_string().contains("panicked")),
        ),
        // Its slots are free, its last block is not: what it took first is given back.
        (
            2,
            LOAD,
            Copies::of(&[7, 8, 1], &[10, 10, 11]),
            Script::SMOOTH,
            |error| {
                let place = Place::Block { class: 0, block: 1 };
                matches!(error, SubmitError::Conflict { with: JobId(0), place: it } if *it == place)
            },
        ),
        (
            2,
            STORE,
            Copies::of(&[7, 7, 8], &[10, 11, 4]),
            Script::SMOOTH,
            |error| {
                matches!(
                    error,
                    SubmitError::Conflict {
                        with: JobId(0),
                        place: Place::Slot(4)
                    }
                )
            },
        ),
        (
            2,
            LOAD,
            Copies::of(&[10, 9], &[10, 11]),
            Script::SMOOTH,
            |error| {
                matches!(
                    error,
                    SubmitError::Poisoned(Place::Block { class: 0, block: 9 })
                )
            },
        ),
    ];
    let before = sight(&world);
    for (at, (job, way, copies, script, expected)) in refused.into_iter().enumerate() {
        let error = world.submit(job, way, &copies, script);
        let error = error.expect_err("it is refused");
        assert!(expected(&error), "{at}: {error}");
        assert_eq!(sight(&world), before, "{at}: {error}");
    }
    // The id of a refused job is as good as any other.
    world.take(2, LOAD, &at(7), Script::MANUAL);
    let full = world.submit(3, LOAD, &at(8), Script::SMOOTH);
    assert!(
        matches!(full, Err(SubmitError::Full { capacity: 3 })),
        "{full:?}"
    );
    assert_eq!(ids(&world.engine.poll_finished()), [1]);
    world.take(3, LOAD, &at(8), Script::MANUAL);
    for job in [0, 2, 3] {
        world.control.finish(job);
    }
    assert_eq!(ids(&world.engine.poll_finished()), [0, 2, 3]);
    world.take(0, STORE, &copies, Script::SMOOTH);
    world.control.check();
}

#[test]
fn full_means_not_collected() {
    let world = World::<false>::with(Notify::Wakes, BLOCKS, options(2, 8));
    for job in 0..2u64 {
        let copies = Copies::at(job.cast_signed());
        world.take(job, LOAD, &copies, Script::SMOOTH);
    }
    assert!(world.engine.drain(None), "both have ended");
    let full = world.submit(2, LOAD, &Copies::at(2), Script::SMOOTH);
    assert!(matches!(full, Err(SubmitError::Full { capacity: 2 })));
    assert_eq!(world.engine.poll_finished().len(), 2);
    world.take(2, LOAD, &Copies::at(2), Script::SMOOTH);
}

/// Which pairs of jobs may be in flight at once: those that share what both read.
#[test]
fn jobs_conflict_where_one_of_them_writes() {
    fn check<const BLOCKING: bool>() {
        let group = |group: usize, blocks: &[i64], slots: &[i64]| {
            let mut copies = Copies::default();
            copies.blocks[group] = blocks.to_vec();
            copies.slots = slots.to_vec();
            copies
        };
        let first = group(0, &[0, 1], &[0, 1]);
        let same_block = group(0, &[4, 1], &[4, 5]);
        let same_block_of_a_sister = group(2, &[4, 1], &[4, 5]);
        let same_number_elsewhere = group(1, &[0, 1], &[4, 5]);
        let same_slot = group(0, &[4, 5], &[4, 1]);
        let slot = Some(Place::Slot(1));
        let block = Some(Place::Block { class: 0, block: 1 });
        let cases = [
            (STORE, STORE, &same_block, None),
            (STORE, STORE, &same_slot, slot),
            (STORE, LOAD, &same_block, block),
            (STORE, LOAD, &same_slot, slot),
            (LOAD, STORE, &same_block, block),
            (LOAD, STORE, &same_slot, slot),
            (LOAD, LOAD, &same_block, block),
            (LOAD, LOAD, &same_slot, None),
            (LOAD, EXPEDITED, &same_block, block),
            (LOAD, EXPEDITED, &same_slot, None),
            (EXPEDITED, LOAD, &same_block_of_a_sister, block),
            (STORE, STORE, &same_block_of_a_sister, None),
            (LOAD, STORE, &same_number_elsewhere, None),
            (LOAD, LOAD, &same_number_elsewhere, None),
        ];
        for (one, other, copies, expected) in cases {
            let world = World::<BLOCKING>::new(Notify::Wakes);
            world.take(0, one, &first, Script::MANUAL);
            let second = world.submit(1, other, copies, Script::MANUAL);
            match (second, expected) {
                (Ok(()), None) => world.control.finish(1),
                (Err(SubmitError::Conflict { with, place }), Some(expected)) => {
                    assert_eq!((with, place), (JobId(0), expected), "{one:?} {other:?}");
                }
                (other_end, _) => panic!("{one:?} {other:?} {copies:?}: {other_end:?}"),
            }
            world.control.finish(0);
            assert!(world.engine.drain(None));
            let count = world.engine.poll_finished().len();
            // All is given back.
            world.take(2, STORE, &first, Script::SMOOTH);
            world.submit(3, LOAD, copies, Script::SMOOTH).ok();
            assert!(world.engine.drain(None));
            for result in world.engine.poll_finished() {
                assert_eq!(end(&result), End::Success);
            }
            assert_eq!(count, 1 + usize::from(expected.is_none()));
            world.control.check();
        }
    }
    in_time(check::<false>);
    in_time(check::<true>);
}

#[test]
fn what_is_not_there_is_not_idle() {
    let world = World::<false>::new(Notify::Wakes);
    assert!(world.engine.is_idle_slot(BLOCKS - 1));
    assert!(!world.engine.is_idle_slot(BLOCKS));
    assert!(world.engine.is_idle_block(1, BLOCKS - 1));
    assert!(!world.engine.is_idle_block(0, BLOCKS), "the next class's");
    assert!(!world.engine.is_idle_block(2, 0), "there are two classes");
}
