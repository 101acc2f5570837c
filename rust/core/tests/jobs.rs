//! The job engine over a backend that does what a test tells it: each fault at each step, and the
//! order, the conflicts and the waits of jobs that have none.

mod scripted;

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use kvferry::transfer::{Direction, JobError, JobId, JobOptions, Place, Priority, SubmitError};
use scripted::{Act, Bench, LOAD, PATIENCE, STORE, Way, options};

const EXPEDITED: Way = Way {
    direction: Direction::Load,
    priority: Priority::Expedited,
};

/// How the job of a fault has to end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ending {
    Refused,
    Failed,
    Quarantined,
}

/// Every fault at every step.
fn faults() -> Vec<(Act, Ending)> {
    let mut faults = vec![
        (Act::FenceFails, Ending::Refused),
        (Act::FencePanics, Ending::Refused),
        (Act::NotStarted, Ending::Failed),
        (Act::EnqueuePanics, Ending::Quarantined),
        (Act::QuiesceFails, Ending::Quarantined),
        (Act::QuiescePanics, Ending::Quarantined),
    ];
    for pending in [0, 1, 5] {
        faults.push((Act::StartedAndFails { pending }, Ending::Failed));
        faults.push((Act::PollFails { pending }, Ending::Failed));
        faults.push((Act::PollPanics { pending }, Ending::Failed));
    }
    faults
}

fn one_fault<const BLOCKS: bool>(act: &Act, ending: Ending, way: Way) {
    let bench = Bench::<BLOCKS>::new(JobOptions::default());
    bench
        .submit(0, way, 0, Act::Succeeds)
        .expect("nothing is in flight");
    let submitted = bench.submit(1, way, 1, act.clone());
    if ending == Ending::Refused {
        assert!(
            matches!(submitted, Err(SubmitError::Backend(_))),
            "{submitted:?}"
        );
        assert!(bench.engine.is_idle_slot(1) && bench.engine.is_idle_block(0, 1));
    } else {
        submitted.expect("a fault comes later");
    }
    bench
        .submit(2, way, 2, Act::Succeeds)
        .expect("other slots and blocks");
    assert!(
        bench.engine.wait(&[0, 1, 2].map(JobId), PATIENCE),
        "a job is stuck"
    );
    assert!(bench.engine.drain(PATIENCE), "the engine is stuck");
    let mut results = bench.engine.poll_finished();
    results.sort_by_key(|result| result.job);
    let faulty: Vec<_> = results
        .extract_if(.., |result| result.job == JobId(1))
        .collect();
    for (result, id) in results.iter().zip([0, 2]) {
        assert_eq!(result.job, JobId(id));
        assert!(
            result.outcome.is_ok() && result.owner.is_some(),
            "{result:?}"
        );
    }
    assert_eq!(results.len(), 2);
    let poisoned = ending == Ending::Quarantined;
    match (ending, faulty.first()) {
        (Ending::Refused, None) => {}
        (Ending::Failed, Some(result)) => {
            assert!(
                matches!(result.outcome, Err(JobError::Backend(_))),
                "{result:?}"
            );
            assert!(result.owner.is_some());
        }
        (Ending::Quarantined, Some(result)) => {
            assert!(
                matches!(result.outcome, Err(JobError::Quarantined(_))),
                "{result:?}"
            );
            assert!(result.owner.is_none(), "its memory may be in use");
        }
        (_, result) => panic!("{result:?}"),
    }
    assert!(faulty.len() <= 1);
    drop((results, faulty));
    assert_eq!(bench.owners(), usize::from(poisoned));
    let stats = bench.engine.stats();
    assert_eq!(stats.poisoned_slots, u64::from(poisoned));
    assert_eq!(stats.poisoned_blocks, u64::from(poisoned));
    assert_eq!(
        (stats.in_flight, stats.quarantined, stats.uncollected),
        (0, 0, 0),
        "{stats:?}"
    );
    let again = bench.submit(3, way, 1, Act::Succeeds);
    if poisoned {
        let Err(SubmitError::Poisoned(place)) = again else {
            panic!("{again:?}");
        };
        assert_eq!(place, Place::Slot(1));
    } else {
        again.expect("its memory is free again");
    }
    bench.engine.shutdown();
    drop(bench.engine.poll_finished());
    bench.ends_with_owners(usize::from(poisoned));
}

#[test]
fn a_fault_at_any_step_ends_its_job_once_and_leaves_the_others_alone() {
    for way in [STORE, LOAD, EXPEDITED] {
        for (act, ending) in faults() {
            one_fault::<false>(&act, ending, way);
            one_fault::<true>(&act, ending, way);
        }
    }
}

#[test]
fn a_dropped_engine_waits_for_its_jobs_and_drops_their_owners() {
    for act in [Act::Succeeds, Act::PollFails { pending: 3 }] {
        let bench = Bench::<false>::new(JobOptions::default());
        bench
            .submit(0, STORE, 0, act.clone())
            .expect("nothing is in flight");
        bench.ends_with_owners(0);
        let bench = Bench::<true>::new(JobOptions::default());
        bench
            .submit(0, STORE, 0, act)
            .expect("nothing is in flight");
        bench.ends_with_owners(0);
    }
}

fn collected<const BLOCKS: bool>(bench: &Bench<BLOCKS>) -> Vec<u64> {
    let results = bench.engine.poll_finished();
    results.iter().map(|result| result.job.0).collect()
}

#[test]
fn jobs_of_one_lane_end_in_order_whatever_ends_first() {
    let bench = Bench::<false>::new(JobOptions::default());
    let gates: Vec<_> = (0..3).map(|_| bench.gate()).collect();
    for (id, gate) in (0..).zip(&gates) {
        bench
            .submit(id, LOAD, id, Act::Held(gate.clone()))
            .expect("apart");
    }
    bench.open(&gates[2]);
    bench.open(&gates[1]);
    assert_eq!(collected(&bench), []);
    assert!(!bench.engine.wait(&[JobId(2)], Some(Duration::ZERO)));
    bench.open(&gates[0]);
    assert_eq!(collected(&bench), [0, 1, 2]);
}

#[test]
fn a_job_that_fails_before_its_start_ends_in_its_turn() {
    let bench = Bench::<false>::new(JobOptions::default());
    let gate = bench.gate();
    bench
        .submit(0, STORE, 0, Act::Held(gate.clone()))
        .expect("nothing is in flight");
    bench.submit(1, STORE, 1, Act::NotStarted).expect("apart");
    assert_eq!(collected(&bench), []);
    bench.open(&gate);
    assert_eq!(collected(&bench), [0, 1]);
}

#[test]
fn nobody_waits_for_a_job_in_quarantine() {
    let bench = Bench::<false>::new(JobOptions::default());
    bench
        .submit(0, LOAD, 0, Act::PollFails { pending: 1000 })
        .expect("nothing is in flight");
    bench.submit(1, LOAD, 1, Act::Succeeds).expect("apart");
    let mut ended = Vec::new();
    while !ended.contains(&1) {
        ended.extend(collected(&bench));
    }
    assert_eq!(ended, [1]);
    assert_eq!(bench.engine.stats().quarantined, 1);
    assert!(!bench.engine.is_idle_slot(0), "its copies may still run");
    let refused = bench
        .submit(2, STORE, 0, Act::Succeeds)
        .expect_err("in use");
    assert!(
        matches!(refused, SubmitError::Conflict { with: JobId(0), .. }),
        "{refused}"
    );
    assert!(bench.engine.wait(&[JobId(0)], PATIENCE));
    assert_eq!(collected(&bench), [0]);
}

#[test]
fn an_expedited_load_overtakes_loads_that_were_not_started() {
    let bench = Bench::<false>::new(options(16, 1));
    let gate = bench.gate();
    bench
        .submit(0, LOAD, 0, Act::Held(gate.clone()))
        .expect("nothing is in flight");
    bench.submit(1, LOAD, 1, Act::Succeeds).expect("apart");
    bench.submit(2, EXPEDITED, 2, Act::Succeeds).expect("apart");
    assert!(bench.engine.wait(&[JobId(2)], PATIENCE));
    assert_eq!(collected(&bench), [2]);
    bench.open(&gate);
    assert!(bench.engine.wait(&[JobId(1)], PATIENCE));
    assert_eq!(collected(&bench), [0, 1]);
}

#[test]
fn jobs_that_read_the_same_go_together_and_those_that_write_it_do_not() {
    // (first, second, same slot, same block): whether the second is taken.
    let cases = [
        (STORE, STORE, true, false, false),
        (STORE, LOAD, true, false, false),
        (LOAD, STORE, true, false, false),
        (LOAD, LOAD, true, false, true),
        (STORE, STORE, false, true, true),
        (STORE, LOAD, false, true, false),
        (LOAD, STORE, false, true, false),
        (LOAD, LOAD, false, true, false),
    ];
    for (first, second, same_slot, same_block, taken) in cases {
        let bench = Bench::<false>::new(JobOptions::default());
        let gate = bench.gate();
        bench
            .submit(0, first, 0, Act::Held(gate.clone()))
            .expect("nothing is in flight");
        let (slot, block) = (u64::from(!same_slot), u64::from(!same_block));
        let outcome = bench.submit_at(1, second, slot, block, Act::Succeeds);
        let place = if same_slot {
            Place::Slot(0)
        } else {
            Place::Block { class: 0, block: 0 }
        };
        match outcome {
            Ok(()) => assert!(taken, "{first:?} {second:?}"),
            Err(SubmitError::Conflict { with, place: on }) => {
                assert!(!taken, "{first:?} {second:?}");
                assert_eq!((with, on), (JobId(0), place));
            }
            Err(error) => panic!("{error}"),
        }
        bench.open(&gate);
        assert!(bench.engine.drain(PATIENCE));
        bench
            .submit_at(2, second, slot, block, Act::Succeeds)
            .expect("all have ended");
    }
}

#[test]
fn a_refused_job_leaves_nothing_behind() {
    let bench = Bench::<false>::new(options(2, usize::MAX));
    let gate = bench.gate();
    bench
        .submit(0, LOAD, 0, Act::Held(gate.clone()))
        .expect("nothing is in flight");
    let refused = [
        bench
            .submit(0, LOAD, 1, Act::Succeeds)
            .expect_err("a duplicate"),
        bench
            .submit(1, STORE, 0, Act::Succeeds)
            .expect_err("a conflict"),
        bench
            .submit(1, LOAD, 99, Act::Succeeds)
            .expect_err("out of range"),
        bench
            .submit(
                1,
                Way {
                    direction: Direction::Store,
                    ..EXPEDITED
                },
                1,
                Act::Succeeds,
            )
            .expect_err("an expedited store"),
    ];
    assert!(matches!(refused[0], SubmitError::Duplicate(JobId(0))));
    assert!(matches!(refused[1], SubmitError::Conflict { .. }));
    assert!(matches!(refused[2], SubmitError::Plan(_)));
    assert!(matches!(refused[3], SubmitError::ExpeditedStore));
    assert_eq!(bench.owners(), 1);
    assert_eq!(bench.engine.stats().submitted, 1);
    bench
        .submit(1, LOAD, 1, Act::Succeeds)
        .expect("nothing of the refused ones is left");
    let full = bench
        .submit(2, LOAD, 2, Act::Succeeds)
        .expect_err("two are under way");
    assert!(matches!(full, SubmitError::Full { capacity: 2 }));
    bench.open(&gate);
    assert!(bench.engine.drain(PATIENCE));
    let full = bench
        .submit(2, LOAD, 2, Act::Succeeds)
        .expect_err("two were not collected");
    assert!(matches!(full, SubmitError::Full { .. }));
    assert_eq!(collected(&bench), [0, 1]);
    bench
        .submit(2, LOAD, 2, Act::Succeeds)
        .expect("both were collected");
}

#[test]
fn only_a_job_that_was_not_started_can_be_cancelled() {
    let bench = Bench::<false>::new(options(16, 1));
    let gate = bench.gate();
    bench
        .submit(0, STORE, 0, Act::Held(gate.clone()))
        .expect("nothing is in flight");
    bench.submit(1, STORE, 1, Act::Succeeds).expect("apart");
    assert_eq!(bench.engine.stats().queued, 1);
    assert!(!bench.engine.cancel(JobId(0)));
    assert!(!bench.engine.cancel(JobId(9)));
    assert!(bench.engine.cancel(JobId(1)));
    assert!(!bench.engine.cancel(JobId(1)));
    let results = bench.engine.poll_finished();
    assert!(matches!(results[0].outcome, Err(JobError::Cancelled)));
    assert!(results[0].owner.is_some());
    assert!(bench.engine.is_idle_slot(1));
    bench.open(&gate);
}

#[test]
fn a_shut_down_engine_ends_what_runs_and_withdraws_what_waits() {
    let bench = Bench::<true>::new(options(16, 1));
    bench
        .submit(0, STORE, 0, Act::Succeeds)
        .expect("nothing is in flight");
    for id in 1..5 {
        bench.submit(id, STORE, id, Act::Succeeds).expect("apart");
    }
    bench.engine.shutdown();
    bench.engine.shutdown();
    let closed = bench
        .submit(9, STORE, 9, Act::Succeeds)
        .expect_err("shut down");
    assert!(matches!(closed, SubmitError::Closed));
    let results = bench.engine.poll_finished();
    assert_eq!(results.len(), 5);
    for result in &results {
        let ended = matches!(result.outcome, Ok(_) | Err(JobError::Cancelled));
        assert!(ended, "{result:?}");
    }
    let stats = bench.engine.stats();
    assert_eq!(stats.succeeded + stats.cancelled, 5);
}

#[test]
fn one_end_wakes_all_who_wait_and_unknown_jobs_keep_nobody() {
    let bench = Bench::<false>::new(JobOptions::default());
    assert!(bench.engine.wait(&[JobId(7)], None));
    assert!(bench.engine.wait(&[], None));
    let gate = bench.gate();
    bench
        .submit(0, LOAD, 0, Act::Held(gate.clone()))
        .expect("nothing is in flight");
    let waiters = 4;
    let barrier = Barrier::new(waiters + 1);
    thread::scope(|scope| {
        for _ in 0..waiters {
            scope.spawn(|| {
                barrier.wait();
                assert!(bench.engine.wait(&[JobId(7), JobId(0)], PATIENCE));
            });
        }
        barrier.wait();
        bench.open(&gate);
    });
    assert_eq!(collected(&bench), [0]);
}

#[test]
fn many_threads_submit_wait_and_collect_and_no_job_is_lost() {
    const THREADS: u64 = 4;
    const JOBS: u64 = 500;
    fn run<const BLOCKS: bool>() {
        let bench = Bench::<BLOCKS>::new(options(64, 8));
        let ended = std::sync::Mutex::new(Vec::new());
        let collect = || {
            let results = bench.engine.poll_finished();
            let mut ended = ended.lock().expect("no test panicked");
            ended.extend(
                results
                    .iter()
                    .map(|result| (result.job.0, result.outcome.is_ok())),
            );
        };
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (bench, collect) = (&bench, &collect);
                scope.spawn(move || {
                    for number in 0..JOBS {
                        let id = number * THREADS + thread;
                        let act = if number % 7 == 3 {
                            Act::PollFails { pending: 2 }
                        } else {
                            Act::Succeeds
                        };
                        let way = if number % 2 == 0 { STORE } else { LOAD };
                        // Each thread has a slot of its own; a job that it left there conflicts.
                        loop {
                            match bench.submit(id, way, thread, act.clone()) {
                                Ok(()) => break,
                                Err(SubmitError::Full { .. } | SubmitError::Conflict { .. }) => {
                                    collect();
                                }
                                Err(error) => panic!("{error}"),
                            }
                        }
                        if number % 5 == 0 {
                            assert!(
                                bench.engine.wait(&[JobId(id)], PATIENCE),
                                "job {id} is stuck"
                            );
                        }
                    }
                });
            }
        });
        assert!(bench.engine.drain(PATIENCE));
        collect();
        let mut ended = ended.into_inner().expect("no test panicked");
        ended.sort_unstable();
        let expected: Vec<_> = (0..THREADS * JOBS)
            .map(|id| (id, id / THREADS % 7 != 3))
            .collect();
        assert_eq!(ended, expected);
        bench.ends_with_owners(0);
    }
    run::<false>();
    run::<true>();
}
