use std::num::NonZeroUsize;
use std::sync::Arc;

use kvferry::transfer::{
    DeviceTensor, Direction, GroupTensor, HostSlots, KvLayout, Plan, Transfer, Waker,
};

use super::{Pool, Shared};
use crate::copy::{Copier, NonTemporal};
use crate::job::{How, Job};
use crate::memory::OwnedBuffer;

const PIECE: u64 = 4096;

/// Memory of one's own: blocks and as many slots.
struct Areas {
    _device: OwnedBuffer,
    _host: OwnedBuffer,
    layout: KvLayout,
}

impl Areas {
    fn new(blocks: u64, page_bytes: u64) -> Self {
        let bytes = usize::try_from(blocks * page_bytes).unwrap();
        let device = OwnedBuffer::zeroed(bytes).unwrap();
        let host = OwnedBuffer::zeroed(bytes).unwrap();
        let tensor = DeviceTensor {
            address: device.address(),
            block_stride: page_bytes,
            page_bytes,
            blocks,
        };
        let tensor_0 = GroupTensor {
            tensor: 0,
            page_bytes,
        };
        let groups = vec![vec![tensor_0]];
        let slots = HostSlots::slot_major(&groups, 1, host.address(), blocks, 64).unwrap();
        let layout = KvLayout::new(vec![tensor], groups, 1, slots).unwrap();
        Self {
            _device: device,
            _host: host,
            layout,
        }
    }

    /// A store of one block.
    fn store(&self, block: i64) -> Plan {
        let transfer = Transfer {
            direction: Direction::Store,
            block_ids: &[block],
            group_sizes: &[1],
            block_indices: &[0],
            slots: &[block],
        };
        self.layout.plan(&transfer).unwrap()
    }

    fn job(&self, block: i64, expedited: bool) -> Arc<Job> {
        let how = How {
            copier: Copier::new(NonTemporal::Auto, false),
            piece_bytes: PIECE,
            expedited,
            fault: None,
        };
        // SAFETY: the memory is this test's own and outlives the jobs, each of which has a block and
        // a slot of its own.
        Arc::new(unsafe { Job::new(self.store(block), how, Waker::default()) })
    }
}

#[test]
fn expedited_jobs_go_first() {
    let areas = Areas::new(3, 4 * PIECE);
    let shared = Shared::default();
    let ordinary = areas.job(0, false);
    let first = areas.job(1, true);
    let second = areas.job(2, true);
    shared.push(Arc::clone(&ordinary));
    shared.push(Arc::clone(&first));
    shared.push(Arc::clone(&second));
    for expected in [&first, &second, &ordinary] {
        let next = shared.next().unwrap();
        assert!(Arc::ptr_eq(&next, expected));
        shared.run(&next);
        assert!(next.has_ended());
    }
}

#[test]
fn an_ordinary_job_makes_way_after_the_piece_at_hand() {
    let areas = Areas::new(2, 4 * PIECE);
    let shared = Shared::default();
    let ordinary = areas.job(0, false);
    let expedited = areas.job(1, true);
    shared.push(Arc::clone(&ordinary));
    let at_hand = shared.next().unwrap();
    shared.push(Arc::clone(&expedited));
    shared.run(&at_hand);
    assert!(!ordinary.is_taken());
    let next = shared.next().unwrap();
    assert!(Arc::ptr_eq(&next, &expedited));
    shared.run(&next);
    let next = shared.next().unwrap();
    assert!(Arc::ptr_eq(&next, &ordinary));
    shared.run(&next);
    assert!(ordinary.has_ended() && expedited.has_ended());
}

#[test]
fn a_dropped_pool_ends_every_job_and_says_so() {
    let areas = Areas::new(8, 64 * PIECE);
    let pool = Pool::new(NonZeroUsize::new(2).unwrap(), Vec::new());
    let jobs: Vec<Arc<Job>> = (0..8).map(|block| areas.job(block, false)).collect();
    pool.start().unwrap();
    for job in &jobs {
        pool.push(Arc::clone(job));
    }
    drop(pool);
    for job in jobs {
        assert!(job.has_ended());
        assert_eq!(Arc::strong_count(&job), 1);
    }
}

#[test]
fn a_dropped_pool_has_ended_its_threads() {
    let areas = Areas::new(1, 64 * PIECE);
    // Often, because a thread that nobody waits for may be quick for once.
    for _ in 0..30 {
        let pool = Pool::new(NonZeroUsize::new(8).unwrap(), Vec::new());
        let shared = Arc::clone(&pool.shared);
        pool.start().unwrap();
        pool.push(areas.job(0, false));
        drop(pool);
        // Each thread has its share of it for as long as it runs.
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}
