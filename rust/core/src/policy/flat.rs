//! Fixed-size arrays whose allocation may fail with an error instead of an abort.
//!
//! An engine is sized by its user, in gigabytes: a capacity that does not fit is an answer that the
//! user gets, not the end of his process. Nothing here grows after it is built.

use std::collections::TryReserveError;

/// Allocates `len` copies of `value`. A length of `usize::MAX` always fails.
///
/// # Errors
///
/// The allocator's refusal, or an overflow of the size in bytes.
pub(crate) fn filled<T: Copy>(len: usize, value: T) -> Result<Box<[T]>, TryReserveError> {
    let mut items = Vec::new();
    items.try_reserve_exact(len)?;
    items.resize(len, value);
    Ok(items.into_boxed_slice())
}

/// The length of an array with one item per index below `count`, where `limit` is the largest count
/// whose indices can be stored. A larger count gives a length that [`filled`] refuses.
pub(crate) fn bounded_len(count: u32, limit: u32) -> usize {
    if count <= limit {
        count as usize
    } else {
        usize::MAX
    }
}
