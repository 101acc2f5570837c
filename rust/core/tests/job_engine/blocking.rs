//! A backend whose start of a job takes its time.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kvferry::transfer::{JobId, Place, SubmitError};

use crate::script::{Notify, Script};
use crate::world::{Copies, End, LOAD, STORE, World, end, ids, in_time};

const HELD: Script = Script {
    held: true,
    ..Script::SMOOTH
};

#[test]
fn no_call_waits_for_the_start_of_a_job() {
    in_time(|| {
        let world = World::<true>::new(Notify::Wakes);
        world.take(0, STORE, &Copies::at(0), HELD);
        assert_eq!(world.control.wait_until_held(), 0);
        // The thread of the engine's stands in the backend from here on.
        world.take(1, STORE, &Copies::at(1), HELD);
        world.take(2, LOAD, &Copies::at(2), HELD);
        let stats = world.engine.stats();
        assert_eq!((stats.in_flight, stats.queued), (1, 2));
        assert!(world.engine.poll_finished().is_empty());
        assert!(!world.engine.wait(&[JobId(0)], Some(Duration::ZERO)));
        assert!(!world.engine.drain(Some(Duration::from_millis(1))));
        assert!(!world.engine.is_idle_slot(0) && !world.engine.is_idle_slot(2));
        let refused = world.submit(3, LOAD, &Copies::at(0), HELD);
        let Err(SubmitError::Conflict { with, place }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((with, place), (JobId(0), Place::Slot(0)));
        assert!(!world.engine.cancel(JobId(0)), "it is being started");
        assert!(world.engine.cancel(JobId(1)));
        let results = world.engine.poll_finished();
        assert_eq!((ids(&results), end(&results[0])), (vec![1], End::Cancelled));
        assert_eq!(world.control.alive(), (2, 0), "its fence is gone");
        world.control.open();
        assert!(world.engine.wait(&[JobId(0), JobId(2)], None));
        assert_eq!(world.engine.poll_finished().len(), 2);
        drop(world.engine);
        world.control.check();
    });
}

#[test]
fn a_shutdown_withdraws_what_was_not_started_and_waits_for_the_start_under_way() {
    in_time(|| {
        let world = Arc::new(World::<true>::new(Notify::Wakes));
        for job in 0..3u64 {
            let copies = Copies::at(job.cast_signed());
            world.take(job, LOAD, &copies, HELD);
        }
        world.control.wait_until_held();
        let shuts = Arc::clone(&world);
        let shutdown = thread::spawn(move || shuts.engine.shutdown());
        world.wait_until_asleep(1);
        assert!(!shutdown.is_finished());
        let refused = world.submit(3, LOAD, &Copies::at(3), HELD);
        assert!(matches!(refused, Err(SubmitError::Closed)), "{refused:?}");
        world.control.open();
        shutdown.join().expect("no panic");
        let results = world.engine.poll_finished();
        let ends: Vec<_> = results.iter().map(|it| (it.job.0, end(it))).collect();
        let expected = [(1, End::Cancelled), (2, End::Cancelled), (0, End::Success)];
        assert_eq!(ends, expected);
        assert_eq!(world.control.started().len(), 1);
    });
}

#[test]
fn the_thread_ends_with_the_engine_whether_it_had_work_or_not() {
    in_time(|| {
        let world = World::<true>::new(Notify::Wakes);
        drop(world.engine);
        assert!(world.control.backend_is_dropped(), "no thread has it");
        let world = World::<true>::new(Notify::Wakes);
        world.take(0, LOAD, &Copies::at(0), Script::SMOOTH);
        assert_eq!(world.collect(1).len(), 1);
        world.wait_until_asleep(1);
        drop(world.engine);
        assert!(world.control.backend_is_dropped(), "no thread has it");
    });
}
