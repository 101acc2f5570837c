//! How an engine ends, and with it its jobs.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::thread;

use kvferry::transfer::{JobEngine, JobId, JobOptions, Priority, SubmitError};

use crate::backend::{Control, FaultBackend};
use crate::script::{Call, Notify, Script, Start};
use crate::world::{BLOCKS, Copies, LOAD, STORE, World, in_time, layout, options};

#[test]
fn a_shutdown_is_the_last_word() {
    fn check<const BLOCKING: bool>() {
        let world = World::<BLOCKING>::with(Notify::Wakes, BLOCKS, options(8, 1));
        world.take(0, LOAD, &Copies::at(0), Script::SMOOTH);
        world.engine.shutdown();
        world.engine.shutdown();
        let refused = world.submit(1, LOAD, &Copies::at(1), Script::SMOOTH);
        assert!(matches!(refused, Err(SubmitError::Closed)), "{refused:?}");
        assert_eq!(world.owners(), 1, "the refused job's is gone");
        assert_eq!(world.engine.poll_finished().len(), 1);
        assert!(world.engine.drain(None) && world.engine.wait(&[JobId(0)], None));
        let (control, owners) = (world.control, world.owners);
        drop(world.engine);
        assert_eq!(Arc::strong_count(&owners), 1, "no owner is left");
        assert_eq!(control.alive(), (0, 0));
        assert!(control.backend_is_dropped());
    }
    in_time(check::<false>);
    in_time(check::<true>);
}

/// Dropped while jobs run, of which some were never collected: it waits, and drops their owners.
#[test]
fn an_engine_that_is_dropped_waits_for_its_jobs() {
    fn check<const BLOCKING: bool>() {
        let world = World::<BLOCKING>::with(Notify::Wakes, BLOCKS, options(16, 2));
        world.take(0, LOAD, &Copies::at(0), Script::SMOOTH);
        assert!(world.engine.wait(&[JobId(0)], None));
        for job in 1..6u64 {
            let copies = Copies::at(job.cast_signed());
            world.take(job, STORE, &copies, Script::MANUAL);
        }
        let (control, owners) = (Arc::clone(&world.control), Arc::clone(&world.owners));
        while control.started().len() < 3 {
            thread::yield_now();
        }
        let drops = thread::spawn(move || drop(world));
        // Those that were not started are withdrawn, and their fences dropped.
        while control.alive().0 > 0 {
            thread::yield_now();
        }
        for job in [2, 1] {
            assert!(control.may_run(job));
            assert!(!drops.is_finished());
            control.finish(job);
        }
        drops.join().expect("no panic");
        assert_eq!(Arc::strong_count(&owners), 1, "no owner is left");
        assert_eq!(control.started().len(), 3, "those that waited never ran");
        assert_eq!(control.alive(), (0, 0));
        assert!(control.backend_is_dropped());
        control.check();
    }
    in_time(check::<false>);
    in_time(check::<true>);
}

#[test]
fn a_panic_between_two_submits_ends_the_jobs_before_it() {
    fn check<const BLOCKING: bool>() {
        let world = World::<BLOCKING>::new(Notify::Wakes);
        let (control, owners) = (Arc::clone(&world.control), Arc::clone(&world.owners));
        let slow = Script {
            polls: Some(20),
            ..Script::SMOOTH
        };
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            world.take(0, LOAD, &Copies::at(0), slow);
            world.take(1, STORE, &Copies::at(1), slow);
            resume_unwind(Box::new("before the next submit"));
        }));
        panicked.expect_err("it panics");
        assert_eq!(Arc::strong_count(&owners), 1, "no owner is left");
        assert_eq!(control.alive(), (0, 0));
        assert!(!control.may_run(0) && !control.may_run(1));
        control.check();
    }
    in_time(check::<false>);
    in_time(check::<true>);
}

/// The host's memory may be the backend's: while copies may run in it, it is not let go.
#[test]
fn a_backend_with_copies_that_may_run_for_ever_is_never_dropped() {
    fn check<const BLOCKING: bool>(script: Script) {
        let world = World::<BLOCKING>::new(Notify::Wakes);
        world.take(0, LOAD, &Copies::at(0), script);
        world.take(1, LOAD, &Copies::at(1), Script::SMOOTH);
        assert!(world.engine.wait(&[JobId(0), JobId(1)], None));
        let (control, owners) = (Arc::clone(&world.control), Arc::clone(&world.owners));
        drop(world);
        assert!(!control.backend_is_dropped());
        assert_eq!(owners.load(std::sync::atomic::Ordering::SeqCst), 1);
        assert!(control.may_run(0) && !control.may_run(1));
        control.check();
    }
    let scripts = [
        Script {
            start: Start::Panics,
            ..Script::SMOOTH
        },
        Script {
            poll: Call::Fails,
            quiesce: Call::Fails,
            ..Script::SMOOTH
        },
    ];
    for script in scripts {
        in_time(move || check::<false>(script));
        in_time(move || check::<true>(script));
    }
}

#[test]
fn an_engine_whose_backend_does_not_attach_is_not_made() {
    for (attach, said) in [(Call::Fails, "a fault"), (Call::Panics, "panicked")] {
        let control = Control::new(Notify::Wakes, attach);
        let backend = FaultBackend::<false>(Arc::clone(&control));
        let made = JobEngine::new(backend, layout(BLOCKS), JobOptions::default());
        let error = made.err().expect("it does not attach");
        assert_eq!(error.call, "attach");
        assert!(error.to_string().contains(said), "{error}");
        assert!(control.backend_is_dropped());
    }
}

/// Calls the engine when it is dropped, as a Python object may.
struct Calls(Weak<JobEngine<FaultBackend<false>>>);

impl Drop for Calls {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            assert_eq!(engine.stats().submitted, 1);
        }
    }
}

#[test]
fn the_owner_of_a_refused_job_may_call_the_engine() {
    in_time(|| {
        let control = Control::new(Notify::Wakes, Call::Works);
        let backend = FaultBackend::<false>(Arc::clone(&control));
        let engine = JobEngine::new(backend, layout(BLOCKS), JobOptions::default());
        let engine = Arc::new(engine.expect("attaches"));
        let submit = |job| {
            let owner = Calls(Arc::downgrade(&engine));
            Copies::at(0).with(kvferry::transfer::Direction::Store, |transfer| {
                let owner = Some(Box::new(owner) as _);
                engine.submit(JobId(job), transfer, job, Priority::Ordinary, owner)
            })
        };
        control.next(Script::MANUAL);
        submit(0).unwrap();
        let refused = submit(1);
        assert!(matches!(refused, Err(SubmitError::Conflict { .. })));
        control.finish(0);
        assert_eq!(engine.poll_finished().len(), 1);
    });
}
