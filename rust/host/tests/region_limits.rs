//! Limits of a process, each set in a process of its own: all are errors, none a signal.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    reason = "what a test expects may panic, and children talk"
)]

use std::ops::ControlFlow;
use std::process::Command;

use kvferry_host::{
    Areas, Fingerprint, HugePages, MemoryOptions, PinnedRegion, PrivateConfig, RegionConfig,
    RegionError, RegionLayout, RegionNote,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: &str = "KVFERRY_REGION_LIMIT";

const AREA_BYTES: u64 = 64 << 20;

/// Runs `limited` in a process of its own.
fn run(limit: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "limited", "--nocapture"])
        .env(LIMIT, limit)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{limit}: {}: {text}",
        output.status
    );
    assert!(text.contains("1 passed"), "{text}");
}

fn lower(resource: Resource, bytes: u64) {
    let limit = Rlimit {
        current: Some(bytes),
        maximum: getrlimit(resource).maximum,
    };
    setrlimit(resource, limit).unwrap();
}

fn open(directory: &tempfile::TempDir) -> Result<PinnedRegion, RegionError> {
    let layout = RegionLayout {
        areas: Areas::Shared,
        area_bytes: AREA_BYTES,
        slots: 1,
        slot_bytes: AREA_BYTES,
    };
    let mut config = RegionConfig::new("limited", 0, 1, layout, Fingerprint(0));
    config.directory = directory.path().to_owned();
    config.memory.huge_pages = HugePages::Off;
    PinnedRegion::open(&config, &mut |_| ControlFlow::Continue(()))
}

fn private() -> Result<PinnedRegion, RegionError> {
    let config = PrivateConfig {
        bytes: AREA_BYTES,
        slots: 1,
        memory: MemoryOptions::default(),
    };
    PinnedRegion::private(&config, &mut |_| ControlFlow::Continue(()))
}

#[test]
#[ignore = "the body of the child processes of the other tests; does nothing by itself"]
fn limited() {
    let directory = tempfile::tempdir().unwrap();
    let empty = || std::fs::read_dir(directory.path()).unwrap().count() == 0;
    match std::env::var(LIMIT).as_deref() {
        Ok("address space") => {
            // What the process has mapped already differs: sanitizers map terabytes.
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
            let more = AREA_BYTES / 2;
            lower(
                Resource::As,
                pages * rustix::param::page_size() as u64 + more,
            );
            match open(&directory) {
                Err(RegionError::AddressSpace { have, .. }) => assert!(have <= more, "{have}"),
                other => panic!("{other:?}"),
            }
            let refused = private();
            assert!(
                matches!(refused, Err(RegionError::AddressSpace { .. })),
                "{refused:?}"
            );
            assert!(empty());
        }
        Ok("file length") => {
            lower(Resource::Fsize, 1 << 20);
            let refused = open(&directory);
            let limit =
                matches!(refused, Err(RegionError::FileSize { have, .. }) if have == 1 << 20);
            assert!(limit, "{refused:?}");
            assert!(empty());
            private().unwrap();
        }
        Ok("locked memory") => {
            lower(Resource::Memlock, 64 << 10);
            for region in [open(&directory).unwrap(), private().unwrap()] {
                let note = RegionNote::LockedMemory { limit: 64 << 10 };
                assert!(region.report().notes.contains(&note), "{}", region.report());
            }
        }
        _ => {}
    }
}

#[test]
fn an_address_space_that_is_too_small_is_an_error() {
    run("address space");
}

#[test]
fn a_file_that_may_not_be_so_long_is_an_error() {
    run("file length");
}

#[test]
fn little_locked_memory_is_a_note() {
    run("locked memory");
}
