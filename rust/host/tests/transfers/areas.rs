//! Memory of a test's own, a layout over it, and what a job must do to it.

use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kvferry::transfer::{
    DeviceTensor, Direction, GroupTensor, HostPart, HostSlots, KvLayout, Lane, Plan, Progress,
    Transfer, TransferBackend, Waker,
};
use kvferry_host::{Extent, HostBackend, HostMemory, HostOptions, HostRunning, OwnedBuffer};

/// One tensor, and as many slots as it has blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) blocks: u64,
    pub(crate) page_bytes: u64,
    /// From one block to the next.
    pub(crate) block_stride: u64,
    /// From one slot to the next.
    pub(crate) slot_stride: u64,
    /// Where both areas begin within their buffers.
    pub(crate) offset: u64,
}

impl Shape {
    pub(crate) fn packed(blocks: u64, page_bytes: u64) -> Self {
        Self {
            blocks,
            page_bytes,
            block_stride: page_bytes,
            slot_stride: page_bytes,
            offset: 0,
        }
    }
}

pub(crate) struct Areas {
    pub(crate) shape: Shape,
    pub(crate) device: Arc<OwnedBuffer>,
    pub(crate) host: Arc<OwnedBuffer>,
    pub(crate) layout: KvLayout,
}

impl Areas {
    pub(crate) fn new(shape: Shape) -> Self {
        let buffer = |stride: u64| {
            let bytes = usize::try_from(shape.offset + stride * shape.blocks).unwrap();
            Arc::new(OwnedBuffer::zeroed(bytes).unwrap())
        };
        let (device, host) = (buffer(shape.block_stride), buffer(shape.slot_stride));
        let layout = layout(shape, device.address(), host.address());
        Self {
            shape,
            device,
            host,
            layout,
        }
    }

    pub(crate) fn memory(&self) -> HostMemory {
        self.memory_of(vec![self.device.extent(), self.host.extent()])
    }

    pub(crate) fn memory_of(&self, extents: Vec<Extent>) -> HostMemory {
        let owner = (Arc::clone(&self.device), Arc::clone(&self.host));
        // SAFETY: the buffers own the extents, exposed by `address`, and the owner keeps them. The
        // tests touch their bytes between jobs alone, and give a block or slot to one job at a time.
        unsafe { HostMemory::new(extents, owner) }
    }

    pub(crate) fn backend(&self, options: HostOptions) -> HostBackend {
        let backend = HostBackend::new(self.memory(), options).unwrap();
        backend.attach(&self.layout).unwrap();
        backend
    }

    /// A plan that copies between these blocks and slots, pair by pair.
    pub(crate) fn plan(&self, direction: Direction, pairs: &[(i64, i64)]) -> Plan {
        plan(&self.layout, direction, pairs)
    }

    /// What a plan does to copies of the two areas, byte by byte.
    pub(crate) fn apply(
        &self,
        direction: Direction,
        pairs: &[(i64, i64)],
        device: &mut [u8],
        host: &mut [u8],
    ) {
        let at = |number: i64, stride: u64| {
            let start = self.shape.offset + u64::try_from(number).unwrap() * stride;
            usize::try_from(start).unwrap()
        };
        for &(block, slot) in pairs {
            let block = at(block, self.shape.block_stride);
            let slot = at(slot, self.shape.slot_stride);
            for byte in 0..usize::try_from(self.shape.page_bytes).unwrap() {
                match direction {
                    Direction::Store => host[slot + byte] = device[block + byte],
                    Direction::Load => device[block + byte] = host[slot + byte],
                }
            }
        }
    }
}

fn layout(shape: Shape, device: u64, host: u64) -> KvLayout {
    let tensor = DeviceTensor {
        address: device + shape.offset,
        block_stride: shape.block_stride,
        page_bytes: shape.page_bytes,
        blocks: shape.blocks,
    };
    let page = GroupTensor {
        tensor: 0,
        page_bytes: shape.page_bytes,
    };
    let slots = HostSlots {
        address: host + shape.offset,
        bytes: shape.slot_stride * shape.blocks,
        slots: shape.blocks,
        parts: vec![vec![HostPart {
            offset: 0,
            slot_stride: shape.slot_stride,
        }]],
        piece_bytes: None,
    };
    KvLayout::new(vec![tensor], vec![vec![page]], 1, slots).unwrap()
}

fn plan(layout: &KvLayout, direction: Direction, pairs: &[(i64, i64)]) -> Plan {
    let (blocks, slots): (Vec<i64>, Vec<i64>) = pairs.iter().copied().unzip();
    let transfer = Transfer {
        direction,
        block_ids: &blocks,
        group_sizes: &[blocks.len()],
        block_indices: &[0],
        slots: &slots,
    };
    layout.plan(&transfer).unwrap()
}

/// All bytes of a buffer on which no job works.
pub(crate) fn read(buffer: &OwnedBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.bytes()];
    let from = ptr::with_exposed_provenance(usize::try_from(buffer.address()).unwrap());
    // SAFETY: both have that many bytes, and the callers have no job in flight.
    unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

/// Overwrites a buffer on which no job works.
pub(crate) fn write(buffer: &OwnedBuffer, bytes: &[u8]) {
    assert_eq!(bytes.len(), buffer.bytes());
    let to = ptr::with_exposed_provenance_mut(usize::try_from(buffer.address()).unwrap());
    // SAFETY: both have that many bytes, and the callers have no job in flight.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// Numbers for tests, from a seed.
#[derive(Debug)]
pub(crate) struct Numbers(pub u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[2]).collect()
    }

    /// All numbers below a bound, in some order.
    pub(crate) fn order(&mut self, bound: u64) -> Vec<i64> {
        let mut order: Vec<i64> = (0..i64::try_from(bound).unwrap()).collect();
        for last in (1..order.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).unwrap();
            order.swap(last, other);
        }
        order
    }
}

pub(crate) fn enqueue(backend: &HostBackend, plan: Plan) -> HostRunning {
    let lane = match plan.direction() {
        Direction::Store => Lane::Store,
        Direction::Load => Lane::Load,
    };
    let started = backend.enqueue(lane, (), plan, &Waker::default());
    started.unwrap_or_else(|error| panic!("{error}"))
}

/// What a job came to.
pub(crate) fn end(backend: &HostBackend, running: &mut HostRunning) -> Progress {
    let started = Instant::now();
    loop {
        match backend.poll(running) {
            Progress::Pending => thread::yield_now(),
            ended => return ended,
        }
        assert!(started.elapsed() < Duration::from_secs(120), "a job hangs");
    }
}
