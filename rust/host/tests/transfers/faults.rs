//! Jobs that are made to fail: what they leave, and what comes after them.

use std::num::NonZeroUsize;

use crate::areas::{Areas, Numbers, Shape, end, enqueue, read, write};
use kvferry::transfer::{Direction, EnqueueError, Lane, Progress, TransferBackend, Waker};
use kvferry_host::{FaultInjection, FaultMoment, HostBackend, HostError, HostOptions};

const BLOCKS: u64 = 32;

/// One page copied at once, and a job for the threads.
const PAGES: [u64; 2] = [2048, 40_000];

fn options(faults: Option<FaultInjection>) -> HostOptions {
    HostOptions {
        threads: NonZeroUsize::new(2),
        faults,
        ..HostOptions::default()
    }
}

fn always(moment: FaultMoment) -> Option<FaultInjection> {
    Some(FaultInjection {
        rate: 1.0,
        seed: 1,
        only: Some(moment),
    })
}

fn areas(page_bytes: u64) -> (Areas, Vec<u8>) {
    let areas = Areas::new(Shape::packed(BLOCKS, page_bytes));
    let device = Numbers(0x5eed_0003).bytes(areas.device.bytes());
    // No byte of the source is zero, as those of the destination are.
    let device: Vec<u8> = device.into_iter().map(|byte| byte | 1).collect();
    write(&areas.device, &device);
    (areas, device)
}

fn all_pairs() -> Vec<(i64, i64)> {
    (0..BLOCKS as i64).map(|block| (block, block)).collect()
}

fn fault(error: kvferry::transfer::BackendError) -> HostError {
    *error
        .source
        .downcast()
        .expect("a fault of the host backend")
}

/// Runs one job until nothing of it is under way, and returns its fault.
fn fails(backend: &HostBackend, areas: &Areas) -> HostError {
    let plan = areas.plan(Direction::Store, &all_pairs());
    let started = backend.enqueue(Lane::Store, (), plan, &Waker::default());
    let (error, mut running) = match started {
        Err(EnqueueError::NotStarted(error)) => return fault(error),
        Err(EnqueueError::Started { error, running }) => (error, running),
        Ok(mut running) => match end(backend, &mut running) {
            Progress::Failed(error) => (error, running),
            other => panic!("{other:?}"),
        },
    };
    while !matches!(backend.quiesce(&mut running), Progress::Done) {
        std::thread::yield_now();
    }
    fault(error)
}

#[test]
fn a_job_that_is_made_to_fail_has_written_as_much_as_its_moment_says() {
    for page_bytes in PAGES {
        for moment in FaultMoment::ALL {
            let (areas, device) = areas(page_bytes);
            let backend = areas.backend(options(always(moment)));
            let error = fails(&backend, &areas);
            let host = read(&areas.host);
            let written = match moment {
                FaultMoment::Refused | FaultMoment::First | FaultMoment::Panic => 0,
                FaultMoment::Midway => host.len() / 2,
                FaultMoment::Started | FaultMoment::Last | FaultMoment::Running => host.len(),
            };
            assert_eq!(host[..written], device[..written], "{moment:?}");
            assert!(host[written..].iter().all(|&byte| byte == 0), "{moment:?}");
            let panicked = matches!(error, HostError::Panicked);
            assert_eq!(panicked, moment == FaultMoment::Panic, "{error}");
            assert!(panicked || matches!(error, HostError::Injected), "{error}");
        }
    }
}

#[test]
fn jobs_go_on_after_every_kind_of_fault() {
    for page_bytes in PAGES {
        let (areas, device) = areas(page_bytes);
        let backend = areas.backend(options(Some(FaultInjection {
            rate: 0.5,
            seed: 11,
            only: None,
        })));
        let (mut failed, mut done) = (0, 0);
        while failed < 40 || done < 40 {
            let plan = areas.plan(Direction::Store, &all_pairs());
            let mut running = match backend.enqueue(Lane::Store, (), plan, &Waker::default()) {
                Err(EnqueueError::NotStarted(_)) => {
                    failed += 1;
                    continue;
                }
                Err(EnqueueError::Started { running, .. }) | Ok(running) => running,
            };
            match end(&backend, &mut running) {
                Progress::Done => {
                    done += 1;
                    assert!(read(&areas.host) == device);
                    write(&areas.host, &vec![0; device.len()]);
                }
                _ => failed += 1,
            }
            while !matches!(backend.quiesce(&mut running), Progress::Done) {
                std::thread::yield_now();
            }
        }
    }
}

/// The moments at which the first jobs fail, told apart by what can be seen of them.
fn outcomes(faults: FaultInjection, jobs: usize) -> Vec<bool> {
    let areas = Areas::new(Shape::packed(1, 64));
    let backend = areas.backend(options(Some(faults)));
    let failed = |_| {
        let plan = areas.plan(Direction::Store, &[(0, 0)]);
        match backend.enqueue(Lane::Store, (), plan, &Waker::default()) {
            Ok(mut running) => !matches!(backend.poll(&mut running), Progress::Done),
            Err(_) => true,
        }
    };
    (0..jobs).map(failed).collect()
}

#[test]
fn a_seed_chooses_its_share_of_the_jobs_and_always_the_same() {
    const JOBS: usize = 20_000;
    let faults = |rate, seed| FaultInjection {
        rate,
        seed,
        only: None,
    };
    for rate in [0.0, 0.05, 0.5, 1.0] {
        let failed = outcomes(faults(rate, 3), JOBS);
        let count = failed.iter().filter(|&&failed| failed).count() as f64;
        let share = count / JOBS as f64;
        // Four standard deviations of as many draws.
        let spread = 4.0 * (rate * (1.0 - rate) / JOBS as f64).sqrt();
        assert!((share - rate).abs() <= spread, "{share} of {rate}");
        assert_eq!(failed, outcomes(faults(rate, 3), JOBS));
    }
    assert_ne!(
        outcomes(faults(0.5, 3), JOBS),
        outcomes(faults(0.5, 4), JOBS)
    );
}

#[test]
fn a_thread_survives_a_panic() {
    let (areas, device) = areas(PAGES[1]);
    let panics = FaultInjection {
        rate: 0.5,
        seed: 2,
        only: Some(FaultMoment::Panic),
    };
    // With one thread, the jobs after a panic are this thread's.
    let backend = areas.backend(HostOptions {
        threads: NonZeroUsize::new(1),
        ..options(Some(panics))
    });
    let (mut panicked, mut done_after) = (0, 0);
    for _ in 0..40 {
        let mut running = enqueue(&backend, areas.plan(Direction::Store, &all_pairs()));
        match end(&backend, &mut running) {
            Progress::Done => done_after += usize::from(panicked > 0),
            _ => panicked += 1,
        }
    }
    assert!(
        panicked > 0 && done_after > 0,
        "{panicked} and {done_after}"
    );
    assert!(read(&areas.host) == device);
}
