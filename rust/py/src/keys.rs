//! Keys as Python hands them in: any iterable of `bytes`, or a C-contiguous `uint8[n, width]`
//! array.
//!
//! The keys of a call are copied into one buffer before the engine sees them. For a list that costs
//! less than holding a reference to each item would, and the engine's passes then run over packed
//! rows. For an array it is what makes the call safe: numpy's own loops write arrays without the
//! interpreter's lock, and a key that changes between being hashed and being stored would leave an
//! index entry that leads nowhere. A copy that is torn is one wrong key, no more. It also means
//! that a long call may release the lock without keeping anything of Python's alive.

use kvferry::Keys;
use numpy::{PyArray2, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyMemoryView, PyString, PyTuple};

use crate::errors::{type_error, value_error};

const EXPECTED: &str = "an iterable of bytes or a uint8[n, width] array";

/// The keys of one call, copied.
#[derive(Debug, Default)]
pub(crate) struct PackedKeys {
    bytes: Vec<u8>,
    /// The length of each key while all have the same.
    width: usize,
    /// Where each key ends, once two differ in length.
    ends: Option<Vec<usize>>,
    len: usize,
}

/// Packed keys in the form that the engine takes.
pub(crate) enum KeysView<'a> {
    Rows(Keys<'a>),
    Slices(Vec<&'a [u8]>),
}

impl KeysView<'_> {
    pub(crate) fn keys(&self) -> Keys<'_> {
        match self {
            Self::Rows(keys) => *keys,
            Self::Slices(keys) => Keys::slices(keys),
        }
    }
}

impl PackedKeys {
    /// The keys of the argument `name`; none may be empty or longer than `key_bytes`.
    pub(crate) fn extract(name: &str, keys: &Bound<'_, PyAny>, key_bytes: usize) -> PyResult<Self> {
        let mut packed = Self::default();
        if let Ok(list) = keys.cast::<PyList>() {
            packed.reserve(list.len(), list.iter().next().as_ref());
            for item in list.iter() {
                packed.push_object(name, &item, key_bytes)?;
            }
        } else if let Ok(tuple) = keys.cast::<PyTuple>() {
            packed.reserve(tuple.len(), tuple.iter_borrowed().next().as_deref());
            for item in tuple.iter_borrowed() {
                packed.push_object(name, &item, key_bytes)?;
            }
        } else if let Ok(array) = keys.cast::<PyUntypedArray>() {
            return Self::extract_array(name, array, key_bytes);
        } else if keys.is_instance_of::<PyBytes>()
            || keys.is_instance_of::<PyByteArray>()
            || keys.is_instance_of::<PyString>()
            || keys.is_instance_of::<PyMemoryView>()
        {
            return Err(type_error(name, EXPECTED, keys));
        } else {
            let items = keys
                .try_iter()
                .map_err(|_| type_error(name, EXPECTED, keys))?;
            for item in items {
                packed.push_object(name, &item?, key_bytes)?;
            }
        }
        Ok(packed)
    }

    fn extract_array(
        name: &str,
        array: &Bound<'_, PyUntypedArray>,
        key_bytes: usize,
    ) -> PyResult<Self> {
        let Ok(array) = array.cast::<PyArray2<u8>>() else {
            let (dtype, shape) = (array.dtype(), array.shape());
            return Err(value_error(
                name,
                format!(
                    "expected a uint8 array of shape (n, width), got {dtype} of shape {shape:?}"
                ),
            ));
        };
        // `as_slice` takes Fortran order for contiguous as well, and would hand out the keys of the
        // transposed array.
        if !array.is_c_contiguous() {
            return Err(value_error(
                name,
                "the array is not C-contiguous (transposed, Fortran order or strided): \
                 pass numpy.ascontiguousarray(keys)",
            ));
        }
        let (len, width) = (array.shape()[0], array.shape()[1]);
        if width == 0 || width > key_bytes {
            return Err(value_error(
                name,
                format!("rows of {width} bytes, the manager holds keys of 1 to {key_bytes}"),
            ));
        }
        let array = array
            .try_readonly()
            .map_err(|error| value_error(name, error))?;
        let bytes = array.as_slice().map_err(|error| value_error(name, error))?;
        Ok(Self {
            bytes: bytes.to_vec(),
            width,
            ends: None,
            len,
        })
    }

    fn reserve(&mut self, len: usize, first: Option<&Bound<'_, PyAny>>) {
        let width = first
            .and_then(|first| first.cast::<PyBytes>().ok())
            .map_or(0, |first| first.as_bytes().len());
        // A first key of unusual length is no reason to take much more memory than the keys need.
        self.bytes.reserve(len * width.min(64));
    }

    #[inline]
    fn push_object(
        &mut self,
        name: &str,
        item: &Bound<'_, PyAny>,
        key_bytes: usize,
    ) -> PyResult<()> {
        let Ok(key) = item.cast::<PyBytes>() else {
            return Err(type_error(&format!("{name}[{}]", self.len), "bytes", item));
        };
        let key = key.as_bytes();
        if key.len() != self.width || self.ends.is_some() {
            self.push_unequal(name, key, key_bytes)?;
        }
        self.bytes.extend_from_slice(key);
        self.len += 1;
        Ok(())
    }

    /// Makes room for a key whose length is not that of those before it.
    #[cold]
    fn push_unequal(&mut self, name: &str, key: &[u8], key_bytes: usize) -> PyResult<()> {
        if key.is_empty() {
            return Err(value_error(
                &format!("{name}[{}]", self.len),
                "the key is empty",
            ));
        }
        if key.len() > key_bytes {
            return Err(value_error(
                &format!("{name}[{}]", self.len),
                format!(
                    "the key has {} bytes, the manager holds at most {key_bytes}",
                    key.len()
                ),
            ));
        }
        if self.len == 0 {
            self.width = key.len();
            return Ok(());
        }
        let (len, width) = (self.len, self.width);
        let ends = self
            .ends
            .get_or_insert_with(|| (1..=len).map(|n| n * width).collect());
        ends.push(self.bytes.len() + key.len());
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn view(&self) -> KeysView<'_> {
        if self.ends.is_none()
            && let Ok(rows) = Keys::rows(&self.bytes, self.width)
        {
            return KeysView::Rows(rows);
        }
        KeysView::Slices((0..self.len).map(|i| self.get(i)).collect())
    }

    fn get(&self, i: usize) -> &[u8] {
        let (start, end) = match &self.ends {
            None => (i * self.width, (i + 1) * self.width),
            Some(ends) => (i.checked_sub(1).map_or(0, |i| ends[i]), ends[i]),
        };
        &self.bytes[start..end]
    }

    /// Only the keys at these places.
    pub(crate) fn select(self, indices: &[usize]) -> Self {
        if indices.len() == self.len {
            return self;
        }
        let mut selected = Self {
            width: self.width,
            len: indices.len(),
            ..Self::default()
        };
        let mut ends = self.ends.is_some().then(Vec::new);
        for &i in indices {
            selected.bytes.extend_from_slice(self.get(i));
            if let Some(ends) = &mut ends {
                ends.push(selected.bytes.len());
            }
        }
        selected.ends = ends;
        selected
    }

    pub(crate) fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, (0..self.len).map(|i| PyBytes::new(py, self.get(i))))
    }
}

/// The one key of the argument `name`.
#[inline]
pub(crate) fn one_key<'a>(name: &str, key: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    match key.cast::<PyBytes>() {
        Ok(key) => Ok(key.as_bytes()),
        Err(_) => Err(type_error(name, "bytes", key)),
    }
}

/// Keys that the engine hands out.
pub(crate) fn key_list<'py>(
    py: Python<'py>,
    keys: &kvferry::KeyList,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key)))
}
