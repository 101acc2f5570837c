//! Who waits sleeps, and is woken.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kvferry::transfer::JobId;

use crate::script::{Notify, Script, Start};
use crate::world::{BLOCKS, Copies, LOAD, STORE, World, in_time, options};

const SHORT: Option<Duration> = Some(Duration::from_millis(5));

fn with_two_jobs<const BLOCKING: bool>(notify: Notify) -> Arc<World<BLOCKING>> {
    let world = World::new(notify);
    world.take(0, LOAD, &Copies::at(0), Script::MANUAL);
    world.take(1, STORE, &Copies::at(1), Script::MANUAL);
    Arc::new(world)
}

#[test]
fn ids_of_no_job_are_ignored() {
    let world = with_two_jobs::<false>(Notify::Wakes);
    assert!(world.engine.wait(&[], None));
    assert!(world.engine.wait(&[JobId(7), JobId(8)], None));
    assert!(!world.engine.wait(&[JobId(7), JobId(0)], SHORT));
    world.control.finish(0);
    assert!(world.engine.wait(&[JobId(7), JobId(0)], None));
    assert_eq!(world.engine.poll_finished().len(), 1);
    assert!(world.engine.wait(&[JobId(0)], None), "it was collected");
    world.control.finish(1);
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let world = with_two_jobs::<false>(Notify::Wakes);
    let begin = Instant::now();
    assert!(!world.engine.wait(&[JobId(0), JobId(1)], SHORT));
    assert!(!world.engine.drain(SHORT));
    assert!(begin.elapsed() >= 2 * SHORT.expect("a time"));
    assert!(!world.engine.wait(&[JobId(0)], Some(Duration::ZERO)));
    assert_eq!(world.engine.debug_asleep(), 0);
    world.control.finish(0);
    world.control.finish(1);
    assert!(world.engine.wait(&[JobId(0)], Some(Duration::ZERO)));
    assert!(world.engine.drain(Some(Duration::ZERO)));
}

#[test]
fn a_backend_that_wakes_is_not_asked_meanwhile() {
    fn check<const BLOCKING: bool>() {
        let world = with_two_jobs::<BLOCKING>(Notify::Wakes);
        let waits = Arc::clone(&world);
        let waiter = thread::spawn(move || waits.engine.wait(&[JobId(0)], None));
        world.wait_until_asleep(1 + usize::from(BLOCKING));
        let before = world.control.polled(0);
        world.control.finish(0);
        assert!(waiter.join().expect("no panic"));
        // By whom it wakes, once each, and none in between.
        assert!(world.control.polled(0) <= before + 1 + usize::from(BLOCKING));
        world.control.finish(1);
    }
    in_time(check::<false>);
    in_time(check::<true>);
}

#[test]
fn a_backend_that_does_not_wake_is_asked_at_its_interval() {
    fn check<const BLOCKING: bool>() {
        const INTERVAL: Duration = Duration::from_millis(2);
        const TIMES: usize = 10;
        let world = World::<BLOCKING>::new(Notify::IsAsked(INTERVAL));
        let slow = Script {
            polls: Some(TIMES),
            ..Script::SMOOTH
        };
        let begin = Instant::now();
        world.take(0, LOAD, &Copies::at(0), slow);
        assert!(world.engine.wait(&[JobId(0)], None));
        // The submit asks, and so does the wait at its begin; a thread of the engine's doubles that.
        let naps = (TIMES - 1) / (1 + usize::from(BLOCKING)) - 1;
        let least = INTERVAL * u32::try_from(naps).expect("a few");
        assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
    }
    in_time(check::<false>);
    in_time(check::<true>);
}

#[test]
fn several_threads_wait_for_jobs_of_their_own() {
    fn check<const BLOCKING: bool>() {
        let world = with_two_jobs::<BLOCKING>(Notify::Wakes);
        let waiters: Vec<_> = [vec![0], vec![1], vec![0, 1], vec![1, 0]]
            .into_iter()
            .map(|jobs: Vec<u64>| {
                let world = Arc::clone(&world);
                let jobs: Vec<JobId> = jobs.into_iter().map(JobId).collect();
                thread::spawn(move || world.engine.wait(&jobs, None))
            })
            .collect();
        let drains = Arc::clone(&world);
        let drain = thread::spawn(move || drains.engine.drain(None));
        world.wait_until_asleep(5 + usize::from(BLOCKING));
        world.control.finish(1);
        // Those that wait for job 0 sleep again.
        world.wait_until_asleep(4 + usize::from(BLOCKING));
        world.control.finish(0);
        assert!(waiters.into_iter().all(|it| it.join().expect("no panic")));
        assert!(drain.join().expect("no panic"));
    }
    in_time(check::<false>);
    in_time(check::<true>);
}

/// The backend tells nobody: whoever finds the end tells the others.
#[test]
fn an_end_that_one_thread_finds_wakes_another() {
    type Find = fn(&World<false>);
    let finds: [Find; 6] = [
        |world| drop(world.engine.poll_finished()),
        |world| assert_eq!(world.engine.stats().uncollected, 1),
        |world| assert!(world.engine.is_idle_slot(0)),
        |world| assert!(world.engine.wait(&[JobId(0)], None)),
        |world| {
            world.take(2, LOAD, &Copies::at(2), Script::MANUAL);
            world.control.finish(2);
        },
        |world| {
            let refused = world.submit(2, STORE, &Copies::at(1), Script::MANUAL);
            refused.expect_err("job 1 is in flight there");
        },
    ];
    for find in finds {
        in_time(move || {
            let world = with_two_jobs::<false>(Notify::Never);
            let waits = Arc::clone(&world);
            let waiter = thread::spawn(move || waits.engine.wait(&[JobId(0)], None));
            world.wait_until_asleep(1);
            world.control.finish(0);
            find(&world);
            assert!(waiter.join().expect("no panic"));
            world.control.finish(1);
        });
    }
}

#[test]
fn a_job_that_is_cancelled_wakes_who_waits_for_it() {
    in_time(|| {
        let world = World::<false>::with(Notify::Never, BLOCKS, options(8, 1));
        for job in 0..2u64 {
            let copies = Copies::at(job.cast_signed());
            world.take(job, LOAD, &copies, Script::MANUAL);
        }
        let world = Arc::new(world);
        let waits = Arc::clone(&world);
        let waiter = thread::spawn(move || waits.engine.wait(&[JobId(1)], None));
        world.wait_until_asleep(1);
        assert!(!world.engine.cancel(JobId(0)), "it runs");
        assert!(world.engine.cancel(JobId(1)));
        assert!(!world.engine.cancel(JobId(1)), "it has ended");
        assert!(!world.engine.cancel(JobId(9)), "there is none");
        assert!(waiter.join().expect("no panic"));
        world.control.finish(0);
    });
}

#[test]
fn a_start_that_panics_or_fails_wakes_who_waits_for_the_job() {
    for start in [Start::Panics, Start::NotStarted, Start::Started] {
        in_time(move || {
            let world = Arc::new(World::<true>::new(Notify::Never));
            let script = Script {
                held: true,
                start,
                ..Script::SMOOTH
            };
            world.take(0, LOAD, &Copies::at(0), script);
            let waits = Arc::clone(&world);
            let waiter = thread::spawn(move || waits.engine.wait(&[JobId(0)], None));
            world.control.wait_until_held();
            world.wait_until_asleep(1);
            world.control.open();
            assert!(waiter.join().expect("no panic"), "{start:?}");
        });
    }
}
