//! The memory that copies may touch, and what keeps it there.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

/// A run of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Where it starts.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
}

/// The memory that copies may touch: extents, and an owner that keeps them alive. Clones are cheap
/// and share both; the owner is dropped with the last of them, after the last copy.
#[derive(Clone)]
pub struct HostMemory {
    inner: Arc<Inner>,
}

struct Inner {
    /// In order; neighbours that touch are one.
    extents: Vec<Extent>,
    _owner: Box<dyn Any + Send + Sync>,
}

impl HostMemory {
    /// Takes memory that someone else allocated, with what keeps it alive.
    ///
    /// # Safety
    ///
    /// * For as long as `owner` is not dropped, all bytes of `extents` can be read and written from
    ///   any thread, and their provenance is exposed.
    /// * The jobs that a backend over this memory works on at one time do not conflict: none writes
    ///   what another reads or writes. A [`kvferry::transfer::JobEngine`] sees to that.
    /// * While a job runs, nobody else touches what it writes, or writes what it reads.
    pub unsafe fn new(extents: Vec<Extent>, owner: impl Any + Send + Sync) -> Self {
        Self {
            inner: Arc::new(Inner {
                extents: joined(extents),
                _owner: Box::new(owner),
            }),
        }
    }

    /// Whether all of these bytes belong to it.
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        let extents = &self.inner.extents;
        let Some(end) = address.checked_add(bytes) else {
            return false;
        };
        let after = extents.partition_point(|extent| extent.address <= address);
        let holds = |extent: &Extent| end - extent.address <= extent.bytes;
        bytes == 0 || extents[..after].last().is_some_and(holds)
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("HostMemory");
        debug.field("extents", &self.inner.extents);
        debug.finish_non_exhaustive()
    }
}

/// Puts extents in order and joins those that touch.
fn joined(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.retain(|extent| extent.bytes > 0);
    extents.sort_unstable();
    let mut joined: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents {
        match joined.last_mut() {
            Some(last) if extent.address - last.address <= last.bytes => {
                last.bytes = last.bytes.max(extent.address - last.address + extent.bytes);
            }
            _ => joined.push(extent),
        }
    }
    joined
}

/// Zeroed memory of one's own, in whole pages, huge ones where the system grants them.
pub struct OwnedBuffer {
    map: MmapRaw,
    bytes: usize,
}

impl OwnedBuffer {
    /// Maps memory. It takes no room before it is touched.
    ///
    /// # Errors
    ///
    /// If the system refuses: too much, or no byte at all.
    pub fn zeroed(bytes: usize) -> io::Result<Self> {
        let map = MmapRaw::from(MmapMut::map_anon(bytes)?);
        // Huge pages make the copies a little faster; a system without them loses only that.
        #[cfg(target_os = "linux")]
        map.advise(memmap2::Advice::HugePage).ok();
        Ok(Self { map, bytes })
    }

    /// Where it starts: at a page. Copies through this address are allowed.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.map.as_mut_ptr().expose_provenance() as u64
    }

    /// How long it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it.
    #[must_use]
    pub fn extent(&self) -> Extent {
        Extent {
            address: self.address(),
            bytes: self.bytes as u64,
        }
    }
}

impl fmt::Debug for OwnedBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("OwnedBuffer")
            .field(&self.extent())
            .finish()
    }
}
