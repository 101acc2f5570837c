//! Pools of random shape, and what jobs have to make of them, page by page.

use std::collections::{BTreeMap, BTreeSet};

use kvferry::transfer::{DeviceTensor, Direction, GroupTensor, HostSlots, JobId, KvLayout};
use kvferry_host::{Extent, HostMemory};

/// A generator of pseudo-random numbers: SplitMix64.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn one_of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// `n` different numbers below `of`.
    fn different(&mut self, n: usize, of: usize) -> Vec<i64> {
        let mut all: Vec<i64> = (0..of as i64).collect();
        // Runs are left in order now and then, so that neighbours merge.
        if self.below(3) == 0 {
            let start = self.below(of - n + 1);
            return all[start..start + n].to_vec();
        }
        for i in 0..n {
            let other = i + self.below(of - i);
            all.swap(i, other);
        }
        all.truncate(n);
        all
    }
}

/// One job, as the scheduler names it.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) direction: Direction,
    pub(crate) block_ids: Vec<i64>,
    pub(crate) group_sizes: Vec<usize>,
    pub(crate) block_indices: Vec<u64>,
    pub(crate) slots: Vec<i64>,
    pub(crate) bytes: u64,
}

impl Job {
    /// Whether one writes what the other reads or writes. Groups that share a tensor share blocks.
    pub(crate) fn conflicts(&self, other: &Self, pools: &Pools) -> bool {
        let slots = |job: &Self| -> BTreeSet<i64> { job.slots.iter().copied().collect() };
        let blocks = |job: &Self| -> BTreeSet<(usize, i64)> {
            let groups = job.group_sizes.iter().enumerate();
            let group_of = groups.flat_map(|(group, &size)| std::iter::repeat_n(group, size));
            let ids = job.block_ids.iter().copied();
            group_of.map(|group| pools.class[group]).zip(ids).collect()
        };
        let store = Direction::Store;
        let on_slots = !slots(self).is_disjoint(&slots(other))
            && (self.direction == store || other.direction == store);
        let on_blocks = !blocks(self).is_disjoint(&blocks(other))
            && (self.direction != store || other.direction != store);
        on_slots || on_blocks
    }
}

/// One page on both sides: (tensor, first byte in the device's memory), first byte in the host's,
/// length.
#[derive(Debug, Clone, Copy)]
struct Page {
    device: usize,
    host: usize,
    bytes: usize,
}

/// Two areas of memory, and what has to be in them.
#[derive(Debug)]
pub(crate) struct Pools {
    layout: KvLayout,
    /// Boxed words: addresses stay, and are aligned.
    device: Box<[u64]>,
    host: Box<[u64]>,
    expected_device: Vec<u8>,
    expected_host: Vec<u8>,
    tensors: Vec<TensorShape>,
    groups: Vec<Vec<GroupTensor>>,
    /// Which groups share blocks.
    class: Vec<usize>,
    parts: Vec<Vec<(usize, usize)>>,
    blocks_per_chunk: usize,
    slots: usize,
    /// What a job in flight will have written, by job: the places and the bytes before.
    before: BTreeMap<u64, Vec<(Page, Vec<u8>)>>,
}

#[derive(Debug, Clone, Copy)]
struct TensorShape {
    offset: usize,
    stride: usize,
    page: usize,
    blocks: usize,
}

impl Pools {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let blocks_per_chunk = dice.one_of(&[1, 1, 2, 3, 4, 8]);
        let blocks = 4 + dice.below(40);
        let slots = 2 + dice.below(20);
        let (tensors, device_bytes) = draw_tensors(dice, blocks);
        // Either groups share all tensors, as hybrid models do, or each has its own.
        let shared = dice.below(2) == 0;
        let count = 1 + dice.below(tensors.len().min(3));
        let groups: Vec<Vec<GroupTensor>> = (0..count)
            .map(|group| {
                let own = |tensor: &usize| shared || tensor % count == group;
                (0..tensors.len())
                    .filter(own)
                    .map(|tensor| {
                        let page = tensors[tensor].page;
                        let short = dice.below(3) == 0;
                        let page_bytes = if short { 1 + dice.below(page) } else { page } as u64;
                        GroupTensor { tensor, page_bytes }
                    })
                    .collect()
            })
            .collect();
        let class = (0..count)
            .map(|group| if shared { 0 } else { group })
            .collect();
        let host_slots = |address: u64, major: usize, alignment: u64| {
            let chunk = blocks_per_chunk as u32;
            let made = if major == 0 {
                HostSlots::slot_major(&groups, chunk, address, slots as u64, alignment)
            } else {
                HostSlots::tensor_major(&groups, chunk, address, slots as u64, alignment)
            };
            made.expect("small numbers")
        };
        let (major, alignment) = (dice.below(2), dice.one_of(&[1, 8, 64, 4096]));
        let host_bytes = host_slots(0, major, alignment).bytes as usize;
        let device: Box<[u64]> = (0..device_bytes.div_ceil(8)).map(|_| dice.next()).collect();
        let host: Box<[u64]> = (0..host_bytes.div_ceil(8)).map(|_| dice.next()).collect();
        let address = |words: &[u64]| words.as_ptr().expose_provenance() as u64;
        let mut host_layout = host_slots(address(&host), major, alignment);
        if dice.below(3) == 0 {
            host_layout.piece_bytes = Some(dice.one_of(&[64, 256, 4096]));
        }
        let parts = host_layout
            .parts
            .iter()
            .map(|group| {
                group
                    .iter()
                    .map(|p| (p.offset as usize, p.slot_stride as usize))
                    .collect()
            })
            .collect();
        let layout = KvLayout::new(
            tensors
                .iter()
                .map(|tensor| DeviceTensor {
                    address: address(&device) + tensor.offset as u64,
                    block_stride: tensor.stride as u64,
                    page_bytes: tensor.page as u64,
                    blocks: tensor.blocks as u64,
                })
                .collect(),
            groups.clone(),
            blocks_per_chunk as u32,
            host_layout,
        );
        let mut pools = Self {
            layout: layout.expect("tensors and slots lie apart"),
            expected_device: Vec::new(),
            expected_host: Vec::new(),
            device,
            host,
            tensors,
            groups,
            class,
            parts,
            blocks_per_chunk,
            slots,
            before: BTreeMap::new(),
        };
        pools.expected_device = bytes_of(&pools.device).to_vec();
        pools.expected_host = bytes_of(&pools.host).to_vec();
        pools
    }

    pub(crate) fn layout(&self) -> KvLayout {
        self.layout.clone()
    }

    /// The memory of both areas. It lives as long as `self`.
    pub(crate) fn memory(&mut self) -> HostMemory {
        let extents = [&mut self.device, &mut self.host].map(|words| Extent {
            address: words.as_mut_ptr().expose_provenance() as u64,
            bytes: size_of_val::<[u64]>(words) as u64,
        });
        // SAFETY: every test drops its engine before its pools. It looks at bytes of a job in flight
        // at no time: only at those of jobs that have ended.
        unsafe { HostMemory::new(extents.to_vec(), ()) }
    }

    pub(crate) fn draw_job(&self, dice: &mut Dice, id: JobId) -> Job {
        let direction = dice.one_of(&[Direction::Store, Direction::Load]);
        let blocks = self.tensors[0].blocks;
        let mut job = Job {
            id,
            direction,
            block_ids: Vec::new(),
            group_sizes: Vec::new(),
            block_indices: Vec::new(),
            slots: Vec::new(),
            bytes: 0,
        };
        // Blocks and slots of different groups differ, as a block pool's and a tier's do.
        let k = self.blocks_per_chunk;
        let most_blocks = 1 + dice.below(blocks.min(24));
        let mut free_blocks = dice.different(most_blocks, blocks);
        let mut free_slots = dice.different(self.slots, self.slots);
        for group in &self.groups {
            let first = dice.below(4 * k);
            let most = (free_slots.len() * k).saturating_sub(first % k);
            let size = dice.below(free_blocks.len().min(most) + 1);
            let chunks = if size == 0 {
                0
            } else {
                (first % k + size).div_ceil(k)
            };
            job.block_ids.extend(free_blocks.drain(..size));
            job.slots.extend(free_slots.drain(..chunks));
            job.group_sizes.push(size);
            job.block_indices.push(first as u64);
            job.bytes += size as u64 * group.iter().map(|part| part.page_bytes).sum::<u64>();
        }
        job
    }

    /// Every page of a job, worked out one by one.
    fn pages(&self, job: &Job) -> Vec<Page> {
        let mut pages = Vec::new();
        let (mut block_at, mut slot_at) = (0, 0);
        for (g, &size) in job.group_sizes.iter().enumerate() {
            let skipped = job.block_indices[g] as usize % self.blocks_per_chunk;
            for i in 0..size {
                let block = job.block_ids[block_at + i] as usize;
                let place = skipped + i;
                let slot = job.slots[slot_at + place / self.blocks_per_chunk] as usize;
                let within = place % self.blocks_per_chunk;
                for (r, part) in self.groups[g].iter().enumerate() {
                    let tensor = self.tensors[part.tensor];
                    let (offset, slot_stride) = self.parts[g][r];
                    let bytes = part.page_bytes as usize;
                    pages.push(Page {
                        device: tensor.offset + block * tensor.stride,
                        host: offset + slot * slot_stride + within * bytes,
                        bytes,
                    });
                }
            }
            block_at += size;
            slot_at += if size == 0 {
                0
            } else {
                (skipped + size).div_ceil(self.blocks_per_chunk)
            };
        }
        pages
    }

    /// A job was submitted: from now on its destination is expected to hold its source. Nothing in
    /// flight conflicts with it, so the source is what it is now.
    pub(crate) fn expect(&mut self, job: &Job) {
        let mut before = Vec::new();
        for page in self.pages(job) {
            let (device, host) = (
                page.device..page.device + page.bytes,
                page.host..page.host + page.bytes,
            );
            let store = job.direction == Direction::Store;
            let (from, to, from_range, to_range) = if store {
                (&self.expected_device, &mut self.expected_host, device, host)
            } else {
                (&self.expected_host, &mut self.expected_device, host, device)
            };
            before.push((page, to[to_range.clone()].to_vec()));
            to[to_range].copy_from_slice(&from[from_range]);
        }
        self.before.insert(job.id.0, before);
    }

    /// Compares all pages that a job copied.
    pub(crate) fn compare(&mut self, job: &Job) {
        self.before.remove(&job.id.0);
        for page in self.pages(job) {
            let (found, expected, at) = if job.direction == Direction::Store {
                (bytes_of(&self.host), &self.expected_host, page.host)
            } else {
                (bytes_of(&self.device), &self.expected_device, page.device)
            };
            let range = at..at + page.bytes;
            assert_eq!(found[range.clone()], expected[range], "{page:?} of {job:?}");
        }
    }

    /// A job failed: its destination holds anything. It is made again what it was before.
    pub(crate) fn restore(&mut self, job: &Job) {
        let before = self.before.remove(&job.id.0);
        for (page, bytes) in before.expect("submitted, and not ended before") {
            let (found, expected, at) = if job.direction == Direction::Store {
                (&mut self.host, &mut self.expected_host, page.host)
            } else {
                (&mut self.device, &mut self.expected_device, page.device)
            };
            bytes_of_mut(found)[at..at + page.bytes].copy_from_slice(&bytes);
            expected[at..at + page.bytes].copy_from_slice(&bytes);
        }
    }

    /// Takes the pages that a job wrote as they are.
    pub(crate) fn accept(&mut self, job: &Job) {
        self.before.remove(&job.id.0);
        for page in self.pages(job) {
            let (found, expected, at) = if job.direction == Direction::Store {
                (bytes_of(&self.host), &mut self.expected_host, page.host)
            } else {
                (
                    bytes_of(&self.device),
                    &mut self.expected_device,
                    page.device,
                )
            };
            let range = at..at + page.bytes;
            expected[range.clone()].copy_from_slice(&found[range]);
        }
    }

    /// Compares all memory, gaps included. No job is in flight.
    pub(crate) fn compare_all(&self) {
        assert!(
            bytes_of(&self.device) == self.expected_device,
            "a byte of the device is wrong"
        );
        assert!(
            bytes_of(&self.host) == self.expected_host,
            "a byte of the host is wrong"
        );
    }
}

/// Tensors one after the other, with gaps, or interleaved block by block; and how much memory they
/// take.
fn draw_tensors(dice: &mut Dice, blocks: usize) -> (Vec<TensorShape>, usize) {
    let count = 1 + dice.below(4);
    let pages: Vec<usize> = (0..count)
        .map(|_| dice.one_of(&[1, 7, 16, 64, 100, 512, 5000, 5000, 20_000]))
        .collect();
    let gap = dice.one_of(&[0, 0, 8, 24]);
    let mut tensors = Vec::new();
    if dice.below(3) == 0 {
        // Packed: block i of all tensors, then block i + 1.
        let stride = pages.iter().map(|page| page + gap).sum();
        let mut offset = 0;
        for page in pages {
            tensors.push(TensorShape {
                offset,
                stride,
                page,
                blocks,
            });
            offset += page + gap;
        }
        return (tensors, stride * blocks);
    }
    let mut offset = 0;
    for page in pages {
        let stride = page + gap;
        tensors.push(TensorShape {
            offset,
            stride,
            page,
            blocks,
        });
        offset += stride * blocks + 8;
    }
    (tensors, offset)
}

fn bytes_of(words: &[u64]) -> &[u8] {
    // SAFETY: every byte of initialised words is a valid `u8`, whose alignment is 1; the length is
    // that of the words.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

fn bytes_of_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: as above, any byte makes a valid word again, and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}
