//! What is left of a backend in the child of a fork.

use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};

use crate::areas::{Areas, Shape, end, enqueue};
use kvferry::transfer::{Direction, EnqueueError, Lane, Progress, TransferBackend, Waker};
use kvferry_host::{HostBackend, HostError, HostOptions};

/// Runs in the child. Returns its exit status: which of its expectations fails.
fn child(areas: &Areas, backend: HostBackend) -> i32 {
    for blocks in [1, 64] {
        let pairs: Vec<(i64, i64)> = (0..blocks).map(|block| (block, block)).collect();
        let plan = areas.plan(Direction::Load, &pairs);
        let refused = backend.enqueue(Lane::Load, (), plan, &Waker::default());
        let Err(EnqueueError::NotStarted(error)) = refused else {
            return 2;
        };
        if !matches!(error.source.downcast_ref(), Some(HostError::Forked)) {
            return 3;
        }
    }
    drop(backend);
    0
}

#[test]
fn a_child_is_refused_at_once_and_its_drop_does_not_hang() {
    let areas = Areas::new(Shape::packed(64, 64 << 10));
    let backend = areas.backend(HostOptions {
        threads: NonZeroUsize::new(2),
        ..HostOptions::default()
    });
    let pairs: Vec<(i64, i64)> = (0..64).map(|block| (block, block)).collect();
    // In flight while the process forks, so that threads may hold locks.
    let mut running: Vec<_> = pairs
        .chunks(16)
        .map(|pairs| enqueue(&backend, areas.plan(Direction::Store, pairs)))
        .collect();
    // SAFETY: the child allocates, which the C library lets it do, waits for nobody, and leaves
    // without unwinding into this frame.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: takes a number of seconds. A child that hangs dies of it.
            unsafe { libc::alarm(30) };
            let status = panic::catch_unwind(AssertUnwindSafe(|| child(&areas, backend)));
            // SAFETY: ends the child, without the exit handlers of the test program.
            unsafe { libc::_exit(status.unwrap_or(4)) };
        }
        pid => {
            assert!(pid > 0, "no fork");
            let mut status = 0;
            // SAFETY: `status` can be written.
            let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(waited, pid);
            assert!(
                libc::WIFEXITED(status),
                "the child died of signal {}",
                libc::WTERMSIG(status)
            );
            assert_eq!(libc::WEXITSTATUS(status), 0);
        }
    }
    for running in &mut running {
        assert!(matches!(end(&backend, running), Progress::Done));
    }
}
