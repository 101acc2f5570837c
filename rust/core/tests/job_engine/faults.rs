//! Every fault at every step of a job, in every lane, over both kinds of backend, however its end is
//! found out: the job ends once, in success or in a typed error; nothing is lost or stuck; and the
//! next job is fine.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvferry::transfer::{Direction, JobError, JobId, JobResult, Priority, SubmitError};

use crate::script::{Call, Notify, Script, Start};
use crate::world::{
    BLOCKS, Copies, EXPEDITED, End, LOAD, STORE, Way, World, end, ids, options, within_time,
};

const WAYS: [Way; 3] = [STORE, LOAD, EXPEDITED];

/// How often a question is answered with "it goes on".
const PENDS: [usize; 3] = [0, 1, 3];

/// How whoever submitted finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finds {
    Polls,
    Waits,
    Drains,
    ShutsDown,
    Drops,
}

const FINDS: [Finds; 5] = [
    Finds::Polls,
    Finds::Waits,
    Finds::Drains,
    Finds::ShutsDown,
    Finds::Drops,
];

/// All lives of a job, each with its end; none where it is refused.
fn scripts() -> Vec<(Script, Option<End>)> {
    let mut scripts = Vec::new();
    for fence in [Call::Fails, Call::Panics] {
        let script = Script {
            fence,
            ..Script::SMOOTH
        };
        scripts.push((script, None));
    }
    for (start, end) in [
        (Start::NotStarted, End::Failed),
        (Start::Panics, End::Quarantined),
    ] {
        let script = Script {
            start,
            ..Script::SMOOTH
        };
        scripts.push((script, Some(end)));
    }
    for polls in PENDS {
        let smooth = Script {
            polls: Some(polls),
            ..Script::SMOOTH
        };
        scripts.push((smooth, Some(End::Success)));
        for quiesces in PENDS {
            for (quiesce, end) in [
                (Call::Works, End::Failed),
                (Call::Fails, End::Quarantined),
                (Call::Panics, End::Quarantined),
            ] {
                let script = Script {
                    quiesces: Some(quiesces),
                    quiesce,
                    ..smooth
                };
                for poll in [Call::Fails, Call::Panics] {
                    scripts.push((Script { poll, ..script }, Some(end)));
                }
                if polls == 0 {
                    let start = Start::Started;
                    scripts.push((Script { start, ..script }, Some(end)));
                }
            }
        }
    }
    scripts
}

/// A job before the faulty one in its lane, one after it, and one of the other direction.
const BEFORE: u64 = 0;
const FAULTY: u64 = 1;
const AFTER: u64 = 2;
const OTHER: u64 = 3;

fn slow(polls: usize) -> Script {
    Script {
        polls: Some(polls),
        ..Script::SMOOTH
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "results are taken, and their owners dropped"
)]
fn check_results(results: Vec<JobResult>, expected: Option<End>) {
    let of = |job: u64| results.iter().filter(move |it| it.job == JobId(job));
    for job in [BEFORE, AFTER, OTHER] {
        let ends: Vec<End> = of(job).map(end).collect();
        assert_eq!(ends, [End::Success], "job {job}");
    }
    let ends: Vec<End> = of(FAULTY).map(end).collect();
    assert_eq!(ends, Vec::from_iter(expected));
    for result in &results {
        let poisoned = end(result) == End::Quarantined;
        assert_eq!(result.owner.is_none(), poisoned, "{result:?}");
        if let Err(JobError::Backend(error) | JobError::Quarantined(error)) = &result.outcome {
            assert!(["enqueue", "poll"].contains(&error.call), "{error}");
        }
    }
    // One that failed while it may run lets the others pass.
    let lane: Vec<u64> = ids(&results)
        .into_iter()
        .filter(|job| ![OTHER, FAULTY].contains(job))
        .collect();
    assert_eq!(lane, [BEFORE, AFTER]);
    if expected == Some(End::Success) {
        let order = ids(&results);
        let at = |job| order.iter().position(|&it| it == job);
        assert!(
            at(BEFORE) < at(FAULTY) && at(FAULTY) < at(AFTER),
            "{order:?}"
        );
    }
}

/// The memory of the faulty job is free, or never used again.
fn check_memory<const BLOCKING: bool>(world: &World<BLOCKING>, copies: &Copies, poisoned: bool) {
    let stats = world.engine.stats();
    let count = 2 * u64::from(poisoned);
    let lost = (stats.poisoned_slots, stats.poisoned_blocks);
    assert_eq!(lost, (count, count));
    assert_eq!(
        (stats.quarantined, stats.in_flight, stats.queued),
        (0, 0, 0)
    );
    for place in 0..BLOCKS {
        let poisoned = poisoned && [4, 5].contains(&place);
        assert_eq!(world.engine.is_idle_slot(place), !poisoned);
        assert_eq!(world.engine.is_idle_block(0, place), !poisoned);
    }
    for (job, way) in (10..).zip(WAYS) {
        let again = world.submit(job, way, copies, Script::SMOOTH);
        match again {
            Ok(()) if !poisoned => {
                let results = world.collect(1);
                assert_eq!((ids(&results), end(&results[0])), (vec![job], End::Success));
            }
            Err(SubmitError::Poisoned(_)) if poisoned => {}
            other => panic!("{other:?}"),
        }
    }
    let elsewhere = Copies::of(&[10, 11], &[10, 11]);
    world.take(20, STORE, &elsewhere, slow(1));
    assert_eq!(end(&world.collect(1)[0]), End::Success);
}

fn one_life<const BLOCKING: bool>(
    (script, expected): (Script, Option<End>),
    way: Way,
    notify: Notify,
    in_flight: usize,
    finds: Finds,
) {
    let world = World::<BLOCKING>::with(notify, BLOCKS, options(16, in_flight));
    let copies = Copies::of(&[4, 5], &[4, 5]);
    let other = if way.0 == Direction::Store {
        LOAD
    } else {
        STORE
    };
    world.take(BEFORE, way, &Copies::at(0), slow(1));
    let taken = world.submit(FAULTY, way, &copies, script);
    match (&taken, expected) {
        (Ok(()), Some(_)) | (Err(SubmitError::Backend(_)), None) => {}
        _ => panic!("{taken:?}"),
    }
    world.take(AFTER, way, &Copies::at(1), slow(2));
    world.take(OTHER, other, &Copies::at(2), slow(1));

    let jobs = [OTHER, AFTER, FAULTY, BEFORE].map(JobId);
    let count = 3 + usize::from(expected.is_some());
    let poisoned = expected == Some(End::Quarantined);
    let mut cancelled = false;
    let results = match finds {
        Finds::Polls => world.collect(count),
        Finds::Waits => {
            assert!(world.engine.wait(&jobs, None));
            world.engine.poll_finished()
        }
        Finds::Drains => {
            assert!(world.engine.drain(None));
            world.engine.poll_finished()
        }
        Finds::ShutsDown => {
            world.engine.shutdown();
            cancelled = true;
            world.engine.poll_finished()
        }
        Finds::Drops => Vec::new(),
    };
    let (control, owners) = (Arc::clone(&world.control), Arc::clone(&world.owners));
    if finds == Finds::Drops {
        drop(world);
    } else if cancelled {
        assert_eq!(results.len(), count);
        // What was not started at that moment was withdrawn, and nothing else.
        let started: Vec<u64> = control.started().iter().map(|it| it.1).collect();
        for result in &results {
            let withdrawn = !started.contains(&result.job.0);
            assert_eq!(end(result) == End::Cancelled, withdrawn, "{result:?}");
            let faulty = result.job.0 == FAULTY && !withdrawn;
            assert!(!faulty || Some(end(result)) == expected, "{result:?}");
        }
        drop(results);
        drop(world);
    } else {
        check_results(results, expected);
        assert_eq!(world.owners(), usize::from(poisoned));
        check_memory(&world, &copies, poisoned);
        drop(world);
    }
    control.check();
    let lost = control.may_run(FAULTY);
    assert!(poisoned || !lost);
    let owners_left = owners.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(owners_left, usize::from(lost), "owners");
    // Nothing is left to drop where `enqueue` panicked.
    let left = usize::from(lost && script.start != Start::Panics);
    assert_eq!(control.alive(), (0, left), "fences and running jobs");
    assert_eq!(control.backend_is_dropped(), !lost);
}

fn every_life<const BLOCKING: bool>(notify: Notify) {
    let at = Arc::new(Mutex::new(String::new()));
    let says = Arc::clone(&at);
    within_time(&at, move || {
        let mut lives = 0;
        for life in scripts() {
            for way in WAYS {
                for in_flight in [1, usize::MAX] {
                    for finds in FINDS {
                        *says.lock().expect("nothing panics") =
                            format!("{life:?} {way:?} {in_flight} {finds:?}");
                        one_life::<BLOCKING>(life, way, notify, in_flight, finds);
                        lives += 1;
                    }
                }
            }
        }
        assert_eq!(lives, (4 + 3 + 6 * 9 + 9) * 3 * 2 * 5);
    });
}

const SOON: Notify = Notify::IsAsked(Duration::from_micros(20));

#[test]
fn every_fault_of_a_backend_that_never_blocks_ends_one_job() {
    every_life::<false>(Notify::Wakes);
}

#[test]
fn every_fault_of_a_backend_that_may_block_ends_one_job() {
    every_life::<true>(Notify::Wakes);
}

#[test]
fn every_fault_of_a_backend_that_is_asked_ends_one_job() {
    every_life::<false>(SOON);
}

#[test]
fn every_fault_of_a_backend_that_is_asked_and_may_block_ends_one_job() {
    every_life::<true>(SOON);
}

/// A failed job keeps its memory until the backend says that nothing of it runs.
#[test]
fn memory_in_quarantine_stays_in_conflict() {
    let fails = Script {
        poll: Call::Fails,
        ..Script::MANUAL
    };
    let started = Script {
        start: Start::Started,
        ..Script::MANUAL
    };
    for (script, stages) in [(fails, 2), (started, 1)] {
        for way in WAYS {
            let world = World::<false>::new(Notify::Wakes);
            world.take(0, way, &Copies::at(3), script);
            for _ in 0..stages {
                assert!(world.engine.poll_finished().is_empty());
                let refused = world.submit(1, STORE, &Copies::at(3), Script::SMOOTH);
                let conflict = matches!(refused, Err(SubmitError::Conflict { with: JobId(0), .. }));
                assert!(conflict, "{refused:?}");
                assert!(!world.engine.is_idle_slot(3) && !world.engine.is_idle_block(0, 3));
                assert_eq!(world.owners(), 1);
                world.control.finish(0);
            }
            let quarantined = world.engine.stats();
            assert_eq!(quarantined.in_flight + quarantined.uncollected, 1);
            let results = world.engine.poll_finished();
            assert_eq!(end(&results[0]), End::Failed);
            world.take(1, STORE, &Copies::at(3), Script::SMOOTH);
            world.control.check();
        }
    }
}

#[test]
fn a_job_in_quarantine_is_counted_and_holds_up_nobody() {
    let world = World::<false>::new(Notify::Wakes);
    let started = Script {
        start: Start::Started,
        ..Script::MANUAL
    };
    world.take(0, LOAD, &Copies::at(0), started);
    world.take(1, LOAD, &Copies::at(1), Script::SMOOTH);
    assert_eq!(ids(&world.engine.poll_finished()), [1]);
    let stats = world.engine.stats();
    assert_eq!((stats.quarantined, stats.in_flight), (1, 1));
    assert!(!world.engine.cancel(JobId(0)));
    assert!(!world.engine.wait(&[JobId(0)], Some(Duration::ZERO)));
    world.control.finish(0);
    assert_eq!(ids(&world.engine.poll_finished()), [0]);
    assert_eq!(world.engine.stats().quarantined, 0);
}

/// Two loads read a slot, and one of them is lost: the other's end does not free the slot.
#[test]
fn poisoned_memory_stays_so_when_another_reader_ends() {
    let world = World::<false>::new(Notify::Wakes);
    let lost = Script {
        quiesce: Call::Fails,
        start: Start::Started,
        ..Script::MANUAL
    };
    let copies = |block| Copies::of(&[block], &[6]);
    world.take(0, LOAD, &copies(1), lost);
    world.take(1, LOAD, &copies(2), Script::MANUAL);
    world.take(2, LOAD, &copies(3), lost);
    world.control.finish(0);
    assert_eq!(ids(&world.engine.poll_finished()), [0]);
    world.control.finish(1);
    world.control.finish(2);
    let mut ended = ids(&world.engine.poll_finished());
    ended.sort_unstable();
    assert_eq!(ended, [1, 2]);
    let stats = world.engine.stats();
    assert_eq!((stats.poisoned_slots, stats.poisoned_blocks), (1, 2));
    for (way, copies) in [(STORE, copies(2)), (LOAD, copies(2))] {
        let refused = world.submit(3, way, &copies, Script::SMOOTH);
        assert!(
            matches!(refused, Err(SubmitError::Poisoned(_))),
            "{refused:?}"
        );
    }
    world.take(3, LOAD, &Copies::of(&[2], &[7]), Script::SMOOTH);
    assert_eq!(world.owners(), 3, "two for ever, and the last one's");
}

/// A backend that neither ends nor fails is a fault that time limits answer.
#[test]
fn a_wait_for_a_job_that_never_ends_keeps_to_its_limit() {
    let world = World::<true>::new(Notify::Wakes);
    let (direction, priority) = LOAD;
    assert_eq!(priority, Priority::Ordinary);
    world.take(0, (direction, priority), &Copies::at(0), Script::MANUAL);
    let limit = Some(Duration::from_millis(3));
    assert!(!world.engine.wait(&[JobId(0)], limit));
    assert!(!world.engine.drain(limit));
    world.control.finish(0);
}
