//! What planning costs, in nanoseconds for each range of a plan; and what a job costs beside its
//! copies.

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use kvferry::transfer::{
    BackendError, DeviceTensor, Direction, EnqueueError, GroupTensor, HostSlots, JobEngine, JobId,
    JobOptions, KvLayout, Lane, Plan, Priority, Progress, Transfer, TransferBackend, Waker,
};

/// A device whose copies take no time.
struct NoCopies;

impl TransferBackend for NoCopies {
    type Stream = ();
    type Fence = ();
    type Running = ();

    const ENQUEUE_MAY_BLOCK: bool = false;

    fn attach(&self, _: &KvLayout) -> Result<(), BackendError> {
        Ok(())
    }

    fn fence(&self, (): ()) -> Result<(), BackendError> {
        Ok(())
    }

    fn enqueue(&self, _: Lane, (): (), _: Plan, _: &Waker) -> Result<(), EnqueueError<()>> {
        Ok(())
    }

    fn poll(&self, (): &mut ()) -> Progress {
        Progress::Done
    }

    fn quiesce(&self, (): &mut ()) -> Progress {
        Progress::Done
    }
}

/// Tensors of equal shape and groups that use all of them, with as many slots as chunks.
fn layout(tensors: u64, blocks: u64, blocks_per_chunk: u32, groups: usize) -> KvLayout {
    const PAGE: u64 = 16 << 10;
    let device = (0..tensors).map(|tensor| DeviceTensor {
        address: (1 << 44) + tensor * blocks * PAGE,
        block_stride: PAGE,
        page_bytes: PAGE,
        blocks,
    });
    let group = (0..usize::try_from(tensors).expect("a small number")).map(|tensor| GroupTensor {
        tensor,
        page_bytes: PAGE,
    });
    let groups = vec![group.collect(); groups];
    let slots = blocks / u64::from(blocks_per_chunk);
    let host = HostSlots::slot_major(&groups, blocks_per_chunk, 1 << 32, slots, 4096);
    let host = host.expect("small numbers");
    KvLayout::new(device.collect(), groups, blocks_per_chunk, host).expect("lies apart")
}

/// The first `count` numbers, each as far from the next as it gets.
fn scattered(count: i64) -> Vec<i64> {
    (0..count).map(|i| i * 4097 % count).collect()
}

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan, per range");
    let cases = [
        ("8,192 blocks, one tensor, scattered", 1, 8192, 1, 1),
        ("1,024 chunks, 32 tensors, scattered", 32, 1024, 1, 1),
        (
            "2,048 chunks of 4 blocks, 4 tensors, scattered",
            4,
            8192,
            4,
            1,
        ),
        (
            "2,048 chunks of 4 blocks, 4 tensors, 2 groups",
            4,
            8192,
            4,
            2,
        ),
    ];
    for (name, tensors, blocks, k, groups) in cases {
        let layout = layout(tensors, blocks, k, groups);
        let (block_ids, slots) = (
            scattered(blocks.cast_signed()),
            scattered(blocks.cast_signed() / i64::from(k)),
        );
        measure(&mut group, name, &layout, (&block_ids, &slots));
    }
    // One range: what is left is the cost of a block.
    let (layout, ids) = (layout(1, 8192, 1, 1), (0..8192).collect::<Vec<_>>());
    let name = "8,192 blocks, one tensor, together (per block)";
    measure(&mut group, name, &layout, (&ids, &ids));
    group.finish();
}

/// Plans a transfer of so many blocks and slots, shared out equally among the groups.
fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    layout: &KvLayout,
    (block_ids, slots): (&[i64], &[i64]),
) {
    let groups = layout.groups();
    for direction in [Direction::Store, Direction::Load] {
        let transfer = Transfer {
            direction,
            block_ids,
            group_sizes: &vec![block_ids.len() / groups; groups],
            block_indices: &vec![0; groups],
            slots,
        };
        let ranges = layout.plan(&transfer).expect("sound").ranges().len();
        let units = if ranges == 1 { block_ids.len() } else { ranges };
        group.throughput(Throughput::Elements(units as u64));
        let id = BenchmarkId::new(name, format!("{direction:?}"));
        group.bench_function(id, |b| b.iter(|| layout.plan(black_box(&transfer))));
    }
}

fn jobs(c: &mut Criterion) {
    let layout = layout(1, 8192, 1, 1);
    let engine = JobEngine::new(NoCopies, layout.clone(), JobOptions::default());
    let engine = engine.expect("attaches");
    let mut group = c.benchmark_group("submit and collect");
    for blocks in [1, 8192] {
        let (block_ids, slots) = (scattered(blocks), scattered(blocks));
        let transfer = Transfer {
            direction: Direction::Store,
            block_ids: &block_ids,
            group_sizes: &[block_ids.len()],
            block_indices: &[0],
            slots: &slots,
        };
        let mut next = 0;
        group.throughput(Throughput::Elements(blocks.unsigned_abs()));
        group.bench_function(format!("{blocks} blocks"), |b| {
            b.iter(|| {
                next += 1;
                let submitted = engine.submit(JobId(next), &transfer, (), Priority::Ordinary, None);
                submitted.expect("nothing is in flight");
                engine.poll_finished()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, plan, jobs);
criterion_main!(benches);
