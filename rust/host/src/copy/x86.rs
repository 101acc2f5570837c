//! Copies past the cache, for x86-64: one body for three widths of vectors.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_setzero_si128,
    _mm_stream_si128, _mm256_loadu_si256, _mm256_setzero_si256, _mm256_stream_si256,
    _mm512_loadu_si512, _mm512_setzero_si512, _mm512_stream_si512,
};
use std::ptr;

/// Bytes of a cache line. Whole lines are what can go past the cache.
const LINE: usize = 64;

/// Vectors on the way at once: enough loads in flight, and whole lines with each width.
const UNROLL: usize = 4;

/// How far ahead of a copy its source is asked for, in bytes: across the end of a page, where the
/// processor's own prefetch stops, and at the end of a range from the next one.
const AHEAD: usize = 2048;

/// A range of so many bytes lasts long enough for the processor's prefetch to do better.
const AHEAD_BELOW: usize = 48 << 10;

macro_rules! non_temporal {
    ($name:ident, $feature:literal, $vector:ty, $zero:ident, $load:ident, $stream:ident) => {
        /// Copies past the cache; what lies before the first line and after the last step is
        /// copied in the ordinary way.
        ///
        /// # Safety
        ///
        /// * The processor has the feature.
        /// * `bytes` bytes can be read at `source` and written at `destination`; the two lie apart.
        /// * Nobody else touches the destination, or writes to the source, until this returns and
        ///   a store fence follows.
        ///
        /// `next` is what is read after this, and may be any address.
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $name(
            source: *const u8,
            destination: *mut u8,
            bytes: usize,
            next: *const u8,
        ) {
            const WIDTH: usize = size_of::<$vector>();
            const STEP: usize = UNROLL * WIDTH;
            const { assert!(STEP.is_multiple_of(LINE) && LINE.is_multiple_of(WIDTH)) };

            let head = destination.align_offset(LINE).min(bytes);
            // SAFETY: `head` is at most `bytes`, for which the caller vouches.
            unsafe { ptr::copy_nonoverlapping(source, destination, head) };
            let mut done = head;
            while bytes - done >= STEP {
                if bytes < AHEAD_BELOW {
                    let ahead = done + AHEAD;
                    let ahead = if ahead < bytes {
                        source.wrapping_add(ahead)
                    } else {
                        next.wrapping_add(ahead - bytes)
                    };
                    for line in (0..STEP).step_by(LINE) {
                        _mm_prefetch(ahead.wrapping_add(line).cast(), _MM_HINT_T0);
                    }
                }
                let mut vectors = [$zero(); UNROLL];
                for (i, vector) in vectors.iter_mut().enumerate() {
                    let from = source.wrapping_add(done + i * WIDTH).cast();
                    // SAFETY: the loop's condition leaves a step from `done` on within `bytes`,
                    // for which the caller vouches. The load asks for no alignment.
                    *vector = unsafe { $load(from) };
                }
                for (i, vector) in vectors.into_iter().enumerate() {
                    let to = destination.wrapping_add(done + i * WIDTH).cast();
                    // SAFETY: within `bytes` as above, and aligned: `head` goes up to the first
                    // line, and steps are whole lines.
                    unsafe { $stream(to, vector) };
                }
                done += STEP;
            }
            let from = source.wrapping_add(done);
            let to = destination.wrapping_add(done);
            // SAFETY: `done` is at most `bytes`, for which the caller vouches.
            unsafe { ptr::copy_nonoverlapping(from, to, bytes - done) };
        }
    };
}

non_temporal!(
    sse2,
    "sse2",
    __m128i,
    _mm_setzero_si128,
    _mm_loadu_si128,
    _mm_stream_si128
);
non_temporal!(
    avx2,
    "avx2",
    __m256i,
    _mm256_setzero_si256,
    _mm256_loadu_si256,
    _mm256_stream_si256
);
non_temporal!(
    avx512,
    "avx512f",
    __m512i,
    _mm512_setzero_si512,
    _mm512_loadu_si512,
    _mm512_stream_si512
);
