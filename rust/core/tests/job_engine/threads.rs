//! Real threads on one engine: some submit, some collect, some wait, and the backend ends jobs from a
//! thread of its own and wakes whoever sleeps. The backend's shadow of the memory notices two jobs
//! that meet; a lost wake hangs, which is noticed too.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kvferry::transfer::{JobId, SubmitError};

use crate::common::Numbers;
use crate::script::{Call, Notify, Script, Start};
use crate::world::{Copies, EXPEDITED, End, LOAD, STORE, World, end, in_time, options};

const PLACES: u32 = 256;
const SUBMITTERS: u64 = 3;
const CAPACITY: usize = 48;

/// One in so many jobs that fail is never found out about, so that some memory is left at the end.
const LOST: usize = 40;

fn script(numbers: &mut Numbers) -> Script {
    let pends = |numbers: &mut Numbers| (numbers.below(3) > 0).then(|| numbers.below(3));
    let mut script = Script {
        polls: pends(numbers),
        quiesces: pends(numbers),
        ..Script::SMOOTH
    };
    let lost = numbers.below(LOST) == 0;
    match numbers.below(16) {
        0 => script.fence = Call::Fails,
        1 => script.start = Start::NotStarted,
        2 => script.start = Start::Started,
        3 | 4 => script.poll = Call::Fails,
        5 => script.poll = Call::Panics,
        6 if lost => script.start = Start::Panics,
        _ => {}
    }
    if lost {
        script.quiesce = Call::Fails;
    }
    script
}

fn copies(numbers: &mut Numbers) -> Copies {
    let mut copies = Copies::default();
    let places = i64::from(PLACES);
    let mut place = || numbers.next().cast_signed().rem_euclid(places);
    let (blocks, slots) = (place(), place());
    let count = 1 + place() % 3;
    for (at, of_group) in (0..count).zip(&mut copies.blocks) {
        of_group.push((blocks + 7 * at) % places);
        copies.slots.push((slots + 5 * at) % places);
    }
    copies
}

#[derive(Debug, Default)]
struct Tally {
    taken: AtomicU64,
    refused: AtomicU64,
    conflicts: AtomicU64,
    full: AtomicU64,
    waited: AtomicU64,
    collected: Mutex<Vec<(u64, End)>>,
}

fn submit<const BLOCKING: bool>(
    world: &World<BLOCKING>,
    tally: &Tally,
    newest: &AtomicU64,
    seed: u64,
    steps: u64,
) {
    let mut numbers = Numbers(seed);
    for step in 0..steps {
        let job = seed + step * SUBMITTERS;
        let way = [STORE, LOAD, EXPEDITED][numbers.below(3)];
        let copies = copies(&mut numbers);
        loop {
            match world.submit_drawn(job, way, &copies) {
                Ok(()) => {
                    newest.store(job, Ordering::SeqCst);
                    tally.taken.fetch_add(1, Ordering::SeqCst);
                }
                Err(SubmitError::Full { .. }) => {
                    tally.full.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    continue;
                }
                Err(SubmitError::Conflict { .. }) => {
                    tally.conflicts.fetch_add(1, Ordering::SeqCst);
                }
                Err(SubmitError::Backend(_) | SubmitError::Poisoned(_)) => {
                    tally.refused.fetch_add(1, Ordering::SeqCst);
                }
                Err(other) => panic!("{other}"),
            }
            break;
        }
        if numbers.below(16) == 0 {
            world.engine.cancel(JobId(job));
        }
    }
}

fn run<const BLOCKING: bool>(steps: u64) {
    let options = options(CAPACITY, 4);
    let world = World::<BLOCKING>::with(Notify::Wakes, u64::from(PLACES), options);
    let mut numbers = Numbers(0x7ead);
    world.control.draw(move || script(&mut numbers));
    let (tally, newest) = (Tally::default(), AtomicU64::new(0));
    let (done, quiet) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let (world, tally, newest, done) = (&world, &tally, &newest, &done);
        let submitters: Vec<_> = (0..SUBMITTERS)
            .map(|seed| scope.spawn(move || submit(world, tally, newest, seed, steps)))
            .collect();
        for _ in 0..2 {
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    let results = world.engine.poll_finished();
                    let ends = results.iter().map(|it| (it.job.0, end(it)));
                    tally.collected.lock().expect("no panic").extend(ends);
                    drop(results);
                    thread::yield_now();
                }
            });
        }
        for limit in [None, Some(Duration::from_micros(200))] {
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    let job = newest.load(Ordering::SeqCst);
                    let jobs = [job, job.saturating_sub(SUBMITTERS), job + 1].map(JobId);
                    world.engine.wait(&jobs, limit);
                    tally.waited.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let quiet = &quiet;
        scope.spawn(move || {
            let mut numbers = Numbers(0xf1);
            while !quiet.load(Ordering::SeqCst) {
                world.control.finish_one(numbers.below(CAPACITY));
                thread::yield_now();
            }
        });
        for submitter in submitters {
            submitter.join().expect("no panic");
        }
        assert!(world.engine.drain(None));
        done.store(true, Ordering::SeqCst);
        world.engine.shutdown();
        quiet.store(true, Ordering::SeqCst);
    });
    let rest = world.engine.poll_finished();
    let mut collected = tally.collected.into_inner().expect("no panic");
    collected.extend(rest.iter().map(|it| (it.job.0, end(it))));
    drop(rest);
    let taken = tally.taken.into_inner();
    assert_eq!(collected.len() as u64, taken, "each job once");
    let jobs: HashSet<u64> = collected.iter().map(|it| it.0).collect();
    assert_eq!(jobs.len() as u64, taken, "no job twice");
    let count = |what| collected.iter().filter(|it| it.1 == what).count() as u64;
    let ends = [End::Success, End::Failed, End::Quarantined, End::Cancelled].map(count);
    let owners = world.owners() as u64;
    assert_eq!(owners, ends[2], "owners of what is never used again");
    let stats = world.engine.stats();
    let of_stats = [stats.succeeded, stats.failed, stats.cancelled];
    assert_eq!(of_stats, [ends[0], ends[1] + ends[2], ends[3]]);
    assert_eq!(
        (stats.in_flight, stats.queued, stats.quarantined),
        (0, 0, 0)
    );
    let seen = (tally.conflicts, tally.refused, tally.full, tally.waited);
    eprintln!("{ends:?} {seen:?}");
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
    let control = Arc::clone(&world.control);
    drop(world);
    control.check();
}

fn steps() -> u64 {
    let factor = std::env::var("KVFERRY_STRESS");
    3_000 * factor.map_or(1, |factor| factor.parse().expect("a number of times"))
}

#[test]
fn threads_on_a_backend_that_never_blocks() {
    in_time(|| run::<false>(steps()));
}

#[test]
fn threads_on_a_backend_that_may_block() {
    in_time(|| run::<true>(steps()));
}
