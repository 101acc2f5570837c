//! The copy kernels: how a run of bytes gets from one place to another.
//!
//! A plain copy reads a line of the destination into the cache before it overwrites it, and leaves
//! there what nobody may need soon. Non-temporal stores do neither; they pay from about a page on
//! (`cargo bench -p kvferry-host` prints by how much). They are ordered after nothing, not even a
//! release: [`Copier::copy`] ends with the fence that they need, so that no caller can forget it.

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ptr;

/// When copies go past the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NonTemporal {
    /// Where that measures faster: the larger ranges of the larger jobs.
    #[default]
    Auto,
    /// In every range that has a whole step of it.
    Always,
    /// Not at all.
    Never,
}

/// Bytes from which on a range is copied past the cache: below, heads and tails cost as much as the
/// lines between them save.
const NON_TEMPORAL_FROM: usize = 2048;

/// Copies `bytes` bytes. Source and destination lie apart. `next` is what is read after that: it may be
/// asked for beforehand.
type CopyFn = unsafe fn(source: *const u8, destination: *mut u8, bytes: usize, next: *const u8);

/// A run of bytes, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) source: usize,
    pub(crate) destination: usize,
    pub(crate) bytes: usize,
}

/// A way to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// The C library's.
    Memcpy,
    #[cfg(target_arch = "x86_64")]
    Sse2,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Kernel {
    /// Those that this processor has, the fastest last. The first one keeps to the cache, the
    /// others go past it.
    pub(crate) fn available() -> Vec<Self> {
        #[cfg_attr(
            not(target_arch = "x86_64"),
            expect(unused_mut, reason = "one kernel, on other processors")
        )]
        let mut kernels = vec![Self::Memcpy];
        #[cfg(target_arch = "x86_64")]
        {
            kernels.push(Self::Sse2);
            if is_x86_feature_detected!("avx2") {
                kernels.push(Self::Avx2);
            }
            if is_x86_feature_detected!("avx512f") {
                kernels.push(Self::Avx512);
            }
        }
        kernels
    }

    /// The fastest that goes past the cache, where there is one.
    fn best() -> Self {
        Self::available().pop().unwrap_or(Self::Memcpy)
    }

    /// The function: to be called only where [`available`](Self::available) lists the kernel.
    fn function(self) -> CopyFn {
        match self {
            Self::Memcpy => memcpy,
            #[cfg(target_arch = "x86_64")]
            Self::Sse2 => x86::sse2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => x86::avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => x86::avx512,
        }
    }
}

/// The C library's copy.
///
/// # Safety
///
/// * `bytes` bytes can be read at `source` and written at `destination`; the two lie apart.
/// * Nobody else touches the destination, or writes to the source, until this returns.
unsafe fn memcpy(source: *const u8, destination: *mut u8, bytes: usize, _next: *const u8) {
    // SAFETY: the caller's promise is the one that this asks for; bytes need no alignment.
    unsafe { ptr::copy_nonoverlapping(source, destination, bytes) };
}

/// Copies spans with one kernel for the large ones and the C library's for the small.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copier {
    large: Kernel,
    large_from: usize,
}

impl Copier {
    /// How a job is copied of which `inline` says whether it is a small one, copied at once.
    ///
    /// What a small job writes still fits in the cache of whoever waits for it, so it stays there.
    pub(crate) fn new(choice: NonTemporal, inline: bool) -> Self {
        match choice {
            NonTemporal::Never => Self::with(Kernel::Memcpy, 0),
            NonTemporal::Always => Self::with(Kernel::best(), 0),
            NonTemporal::Auto if inline => Self::with(Kernel::Memcpy, 0),
            NonTemporal::Auto => Self::with(Kernel::best(), NON_TEMPORAL_FROM),
        }
    }

    fn with(large: Kernel, large_from: usize) -> Self {
        assert!(Kernel::available().contains(&large), "the processor has it");
        Self { large, large_from }
    }

    /// Copies all spans. When this returns, a release of this thread publishes what was written.
    ///
    /// # Safety
    ///
    /// For each span:
    ///
    /// * its bytes can be read at the source and written at the destination, and the two lie apart;
    /// * the provenance of both was exposed;
    /// * nobody else touches the destination, or writes to the source, until this returns.
    pub(crate) unsafe fn copy(self, spans: impl Iterator<Item = Span>) {
        let large = self.large.function();
        let mut spans = spans.peekable();
        while let Some(span) = spans.next() {
            let source = ptr::with_exposed_provenance(span.source);
            let destination = ptr::with_exposed_provenance_mut(span.destination);
            let next = spans.peek().unwrap_or(&span);
            let next = ptr::with_exposed_provenance(next.source);
            let function = if span.bytes >= self.large_from {
                large
            } else {
                memcpy
            };
            // SAFETY: the caller vouches for the span; `with` saw that the processor has `large`.
            unsafe { function(source, destination, span.bytes, next) };
        }
        fence();
    }
}

/// Makes non-temporal stores of this thread visible before whatever it stores next.
#[cfg(target_arch = "x86_64")]
fn fence() {
    // SAFETY: every x86-64 processor has SSE, and the instruction touches no memory.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn fence() {}
