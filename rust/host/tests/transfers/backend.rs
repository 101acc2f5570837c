//! The host backend, beside a model that copies byte by byte.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::areas::{Areas, Numbers, Shape, end, enqueue, read, write};
use kvferry::transfer::{Direction, EnqueueError, Lane, Progress, TransferBackend, Waker};
use kvferry_host::{
    Extent, HostBackend, HostError, HostMemory, HostOptions, INLINE_BYTES, NonTemporal,
};

const DIRECTIONS: [Direction; 2] = [Direction::Store, Direction::Load];

fn threads(count: usize) -> HostOptions {
    HostOptions {
        threads: NonZeroUsize::new(count),
        ..HostOptions::default()
    }
}

fn is_done(progress: &Progress) -> bool {
    matches!(progress, Progress::Done)
}

/// The backend's own fault, of whatever carries it.
fn fault(error: &kvferry::transfer::BackendError) -> &HostError {
    error
        .source
        .downcast_ref()
        .expect("a fault of the host backend")
}

#[test]
fn jobs_copy_what_the_model_copies_and_no_other_byte() {
    let mut numbers = Numbers(0x5eed_0001);
    for round in 0..120 {
        let page_bytes = match round % 6 {
            0 => 1 + numbers.below(300),
            1 => 4096,
            2 => 1 + numbers.below(9000),
            3 => 16 << 10,
            4 => 65_536 + numbers.below(3),
            _ => 1 + numbers.below(700_000),
        };
        let areas = Areas::new(Shape {
            blocks: 1 + numbers.below(40),
            page_bytes,
            block_stride: page_bytes + numbers.below(2) * numbers.below(200),
            slot_stride: page_bytes + numbers.below(2) * numbers.below(200),
            offset: numbers.below(100),
        });
        let choices = [NonTemporal::Auto, NonTemporal::Always, NonTemporal::Never];
        let backend = areas.backend(HostOptions {
            non_temporal: choices[round % 3],
            ..threads(1 + round / 3 % 3)
        });
        let mut device = numbers.bytes(areas.device.bytes());
        let mut host = numbers.bytes(areas.host.bytes());
        write(&areas.device, &device);
        write(&areas.host, &host);
        for direction in DIRECTIONS.into_iter().cycle().take(4) {
            let blocks = numbers.order(areas.shape.blocks);
            let slots = numbers.order(areas.shape.blocks);
            let count = usize::try_from(1 + numbers.below(areas.shape.blocks)).unwrap();
            let pairs: Vec<(i64, i64)> = blocks.into_iter().zip(slots).take(count).collect();
            let mut running = enqueue(&backend, areas.plan(direction, &pairs));
            assert!(is_done(&end(&backend, &mut running)));
            areas.apply(direction, &pairs, &mut device, &mut host);
            assert!(
                read(&areas.device) == device,
                "round {round}, {direction:?}: device"
            );
            assert!(
                read(&areas.host) == host,
                "round {round}, {direction:?}: host"
            );
        }
    }
}

#[test]
fn jobs_of_several_threads_in_both_directions_do_not_disturb_each_other() {
    const BLOCKS: i64 = 600;
    let areas = Areas::new(Shape::packed(BLOCKS as u64, 4096 + 64));
    let mut numbers = Numbers(0x5eed_0002);
    let mut device = numbers.bytes(areas.device.bytes());
    let mut host = numbers.bytes(areas.host.bytes());
    write(&areas.device, &device);
    write(&areas.host, &host);
    let backend = areas.backend(threads(3));
    // Stores of the first half, loads of the second: jobs of 1 to 100 blocks, from two threads each.
    let jobs = |direction: Direction, mut from: i64, to: i64| {
        let mut jobs = Vec::new();
        while from < to {
            let blocks = (1 + from * 7 % 100).min(to - from);
            let pairs: Vec<(i64, i64)> =
                (from..from + blocks).map(|block| (block, block)).collect();
            jobs.push((direction, pairs));
            from += blocks;
        }
        jobs
    };
    let quarter = BLOCKS / 4;
    let shares: Vec<_> = (0..4)
        .map(|share| {
            let direction = DIRECTIONS[usize::from(share >= 2)];
            jobs(direction, share * quarter, (share + 1) * quarter)
        })
        .collect();
    for _ in 0..30 {
        thread::scope(|scope| {
            for share in &shares {
                scope.spawn(|| {
                    let plans = share
                        .iter()
                        .map(|(direction, pairs)| areas.plan(*direction, pairs));
                    let mut running: Vec<_> = plans.map(|plan| enqueue(&backend, plan)).collect();
                    for running in &mut running {
                        assert!(is_done(&end(&backend, running)));
                    }
                });
            }
        });
        for (direction, pairs) in shares.iter().flatten() {
            areas.apply(*direction, pairs, &mut device, &mut host);
        }
        assert!(read(&areas.device) == device && read(&areas.host) == host);
        // Other bytes for the next round.
        device.iter_mut().zip(&mut host).for_each(|(device, host)| {
            *device = device.wrapping_add(3);
            *host = host.wrapping_mul(5).wrapping_add(1);
        });
        write(&areas.device, &device);
        write(&areas.host, &host);
    }
}

#[test]
fn a_small_job_has_ended_when_it_is_enqueued() {
    let areas = Areas::new(Shape::packed(1, INLINE_BYTES));
    let backend = areas.backend(threads(1));
    let mut running = enqueue(&backend, areas.plan(Direction::Store, &[(0, 0)]));
    assert!(is_done(&backend.poll(&mut running)));
}

#[test]
fn a_plan_of_another_layout_is_refused() {
    let areas = Areas::new(Shape::packed(4, 4096));
    let other = Areas::new(Shape::packed(4, 4096));
    let backend = areas.backend(threads(1));
    let plan = other.plan(Direction::Store, &[(0, 0)]);
    let (asked, attached) = (plan.layout(), areas.layout.id());
    let refused = backend.enqueue(Lane::Store, (), plan, &Waker::default());
    let Err(EnqueueError::NotStarted(error)) = refused else {
        panic!("{refused:?}");
    };
    assert!(matches!(
        fault(&error),
        HostError::OtherLayout { plan, attached: Some(own) } if *plan == asked && *own == attached
    ));
}

#[test]
fn a_plan_without_a_layout_is_refused() {
    let areas = Areas::new(Shape::packed(4, 4096));
    let backend = HostBackend::new(areas.memory(), threads(1)).unwrap();
    let plan = areas.plan(Direction::Load, &[(0, 0)]);
    let refused = backend.enqueue(Lane::Load, (), plan, &Waker::default());
    let Err(EnqueueError::NotStarted(error)) = refused else {
        panic!("{refused:?}");
    };
    assert!(matches!(
        fault(&error),
        HostError::OtherLayout { attached: None, .. }
    ));
}

#[test]
fn a_layout_outside_of_the_memory_is_refused() {
    let areas = Areas::new(Shape::packed(4, 4096));
    let (device, host) = (areas.device.extent(), areas.host.extent());
    let short = |extent: Extent| Extent {
        bytes: extent.bytes - 1,
        ..extent
    };
    let late = |extent: Extent| Extent {
        address: extent.address + 1,
        bytes: extent.bytes - 1,
    };
    let cases = [
        (vec![short(device), host], "device"),
        (vec![device, short(host)], "host"),
        (vec![late(device), host], "device"),
        (vec![device, late(host)], "host"),
        (vec![device], "host"),
        (vec![], "device"),
    ];
    for (extents, outside) in cases {
        let backend = HostBackend::new(areas.memory_of(extents), threads(1)).unwrap();
        let error = backend.attach(&areas.layout).unwrap_err();
        let HostError::OutsideMemory {
            side,
            address,
            bytes,
        } = *fault(&error)
        else {
            panic!("{error}");
        };
        let extent = if outside == "device" { device } else { host };
        assert_eq!(
            (side, address, bytes),
            (outside, extent.address, extent.bytes)
        );
    }
}

#[test]
fn memory_in_parts_that_touch_or_overlap_is_one() {
    let areas = Areas::new(Shape::packed(4, 4096));
    let (device, host) = (areas.device.extent(), areas.host.extent());
    let part = |extent: Extent, from: u64, to: u64| Extent {
        address: extent.address + from,
        bytes: to - from,
    };
    let parts = vec![
        part(device, 9000, device.bytes),
        part(device, 100, 200),
        part(host, 5000, host.bytes),
        part(device, 0, 9000),
        part(host, 0, 6000),
    ];
    let backend = HostBackend::new(areas.memory_of(parts), threads(1)).unwrap();
    backend.attach(&areas.layout).unwrap();
}

#[test]
fn a_second_layout_is_refused() {
    let areas = Areas::new(Shape::packed(4, 4096));
    let backend = areas.backend(threads(1));
    let error = backend.attach(&areas.layout).unwrap_err();
    assert!(matches!(fault(&error), HostError::Attached));
}

#[test]
#[cfg(target_os = "linux")]
fn a_cpu_that_is_not_there_is_refused() {
    let areas = Areas::new(Shape::packed(1, 64));
    for cpu in [1023, 1 << 20] {
        let options = HostOptions {
            cpus: vec![cpu],
            ..HostOptions::default()
        };
        let refused = HostBackend::new(areas.memory(), options).unwrap_err();
        assert!(matches!(refused, HostError::Cpu { cpu: named } if named == cpu));
    }
}

/// The memory is unmapped with its owner: a copy after that is a fault of the process.
#[test]
fn a_backend_that_is_dropped_with_jobs_in_flight_copies_nothing_after_it_lets_go_of_its_memory() {
    struct Owner(
        Option<(
            Arc<kvferry_host::OwnedBuffer>,
            Arc<kvferry_host::OwnedBuffer>,
        )>,
    );
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    impl Drop for Owner {
        fn drop(&mut self) {
            let buffers = self.0.take().expect("dropped once");
            assert_eq!(Arc::strong_count(&buffers.0), 1);
            DROPPED.fetch_add(1, Ordering::SeqCst);
        }
    }
    for round in 0..20 {
        let areas = Areas::new(Shape::packed(16, 2 << 20));
        let extents = vec![areas.device.extent(), areas.host.extent()];
        let plans: Vec<_> = (0..16)
            .map(|block| {
                areas.plan(
                    DIRECTIONS[usize::from(block % 2 == 1)],
                    &[(block, 15 - block)],
                )
            })
            .collect();
        let layout = areas.layout.clone();
        let owner = Owner(Some((areas.device, areas.host)));
        // SAFETY: the owner keeps both buffers, and each block and slot has one job.
        let memory = unsafe { HostMemory::new(extents, owner) };
        let backend = HostBackend::new(memory, threads(2)).unwrap();
        backend.attach(&layout).unwrap();
        let mut running: Vec<_> = plans
            .into_iter()
            .map(|plan| enqueue(&backend, plan))
            .collect();
        // Once a first job has ended, threads are in the middle of others.
        assert!(is_done(&end(&backend, &mut running[0])));
        drop(backend);
        assert_eq!(DROPPED.load(Ordering::SeqCst), round + 1);
        drop(running);
    }
}
