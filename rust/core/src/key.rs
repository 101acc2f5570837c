//! Keys as the caller hands them in, and lists of keys as the engine hands them out.

use crate::access::RequestAccess;
use crate::error::KeyError;

/// The keys of one call, in prefix order (head first), borrowed from the caller.
///
/// A key is the identity of a chunk: the bytes of the engine's block hash and, by default, its
/// KV-cache group as the last four bytes, big-endian. kvferry never hashes tokens.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a>(Source<'a>);

#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    /// Each in its own slice.
    Slices(&'a [&'a [u8]]),
    /// Of equal width, above zero, one after the other; a whole number of them.
    Rows { bytes: &'a [u8], width: usize },
    /// Those that a request saw.
    Access(&'a RequestAccess),
}

impl<'a> Keys<'a> {
    /// Keys of any length, each in its own slice.
    #[must_use]
    pub fn slices(keys: &'a [&'a [u8]]) -> Self {
        Self(Source::Slices(keys))
    }

    /// Keys of equal width, one after the other.
    ///
    /// # Errors
    ///
    /// [`KeyError::Rows`] if `width` is zero or does not divide the length of `bytes`.
    pub fn rows(bytes: &'a [u8], width: usize) -> Result<Self, KeyError> {
        if width == 0 || !bytes.len().is_multiple_of(width) {
            return Err(KeyError::Rows {
                bytes: bytes.len(),
                width,
            });
        }
        Ok(Self(Source::Rows { bytes, width }))
    }

    /// The keys that a request saw, in the order in which its record has them.
    pub(crate) fn seen_by(access: &'a RequestAccess) -> Self {
        Self(Source::Access(access))
    }

    /// How many keys there are.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        match self.0 {
            Source::Slices(keys) => keys.len(),
            Source::Rows { bytes, width } => bytes.len() / width,
            Source::Access(access) => access.seen(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key at `i`; an empty slice beyond the end.
    #[must_use]
    #[inline]
    pub fn get(&self, i: usize) -> &'a [u8] {
        match self.0 {
            Source::Slices(keys) => keys.get(i).copied().unwrap_or_default(),
            Source::Rows { bytes, width } => i
                .checked_mul(width)
                .and_then(|start| bytes.get(start..start.checked_add(width)?))
                .unwrap_or_default(),
            Source::Access(access) => access.seen_key(i),
        }
    }

    /// The keys in order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        (0..self.len()).map(move |i| self.get(i))
    }

    /// Checks every length against the engine's `key_bytes`.
    pub(crate) fn check(&self, key_bytes: usize) -> Result<(), KeyError> {
        match self.0 {
            Source::Rows { bytes: [], .. } | Source::Access(_) => Ok(()),
            Source::Rows { width, .. } => check_key(0, width, key_bytes),
            Source::Slices(keys) => keys
                .iter()
                .enumerate()
                .try_for_each(|(i, key)| check_key(i, key.len(), key_bytes)),
        }
    }
}

impl<'a> From<&'a [&'a [u8]]> for Keys<'a> {
    fn from(keys: &'a [&'a [u8]]) -> Self {
        Self::slices(keys)
    }
}

pub(crate) fn check_key(index: usize, len: usize, key_bytes: usize) -> Result<(), KeyError> {
    if len == 0 {
        return Err(KeyError::Empty { index });
    }
    if len > key_bytes {
        return Err(KeyError::TooLong {
            index,
            len,
            key_bytes,
        });
    }
    Ok(())
}

/// Keys that the engine hands out, in one allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyList {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl KeyList {
    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The keys in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let start = |i: usize| if i == 0 { 0 } else { self.ends[i - 1] };
        (0..self.ends.len()).map(move |i| &self.bytes[start(i)..self.ends[i]])
    }

    /// Appends one key.
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.seal();
    }

    /// The buffer to which the bytes of one key are appended before [`KeyList::seal`].
    pub(crate) fn grow(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Makes the bytes since the last key a key, and returns it.
    pub(crate) fn seal(&mut self) -> &[u8] {
        let start = self.ends.last().copied().unwrap_or(0);
        self.ends.push(self.bytes.len());
        &self.bytes[start..]
    }

    pub(crate) fn with_capacity(keys: usize, key_bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(keys * key_bytes),
            ends: Vec::with_capacity(keys),
        }
    }
}

/// The KV-cache group of a key: its last four bytes, big-endian; all of a shorter key; 0 if keys
/// carry no group.
pub(crate) fn group(key: &[u8], group_bytes: usize) -> u32 {
    let tail = &key[key.len().saturating_sub(group_bytes)..];
    tail.iter()
        .fold(0, |group, byte| group << 8 | u32::from(*byte))
}
