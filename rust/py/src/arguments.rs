//! Arguments that are no keys, checked so that the message names them.

use kvferry::{PolicyKind, ResetMode};
use numpy::{Element, PyArray1, PyArrayMethods};
use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

use crate::errors::{type_error, value_error};

/// An integer that a `T` can hold.
pub(crate) fn integer<T: TryFrom<i128>>(name: &str, value: &Bound<'_, PyAny>) -> PyResult<T> {
    let number = value.extract::<i128>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            value_error(name, "the integer is out of range")
        } else if error.is_instance_of::<PyTypeError>(value.py()) {
            type_error(name, "an int", value)
        } else {
            error
        }
    })?;
    T::try_from(number).map_err(|_| value_error(name, format!("{number} is out of range")))
}

pub(crate) fn optional_integer<T: TryFrom<i128>>(
    name: &str,
    value: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<T>> {
    value.map(|value| integer(name, value)).transpose()
}

pub(crate) fn boolean(name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    match value.cast::<PyBool>() {
        Ok(value) => Ok(value.is_true()),
        // numpy's bool.
        Err(_) => value
            .extract::<bool>()
            .map_err(|_| type_error(name, "a bool", value)),
    }
}

/// An instance of one of this module's classes.
pub(crate) fn instance<'a, 'py, T: PyTypeInfo>(
    name: &str,
    value: &'a Bound<'py, PyAny>,
) -> PyResult<&'a Bound<'py, T>> {
    match value.cast::<T>() {
        Ok(instance) => Ok(instance),
        Err(_) => {
            let class = T::type_object(value.py()).name()?;
            Err(type_error(name, &class.to_cow()?, value))
        }
    }
}

fn text<'a>(name: &str, value: &'a Bound<'_, PyAny>) -> PyResult<std::borrow::Cow<'a, str>> {
    match value.cast::<PyString>() {
        Ok(text) => text
            .to_cow()
            .map_err(|_| value_error(name, "the text is no valid Unicode")),
        Err(_) => Err(type_error(name, "a str", value)),
    }
}

pub(crate) fn policy(name: &str, value: &Bound<'_, PyAny>) -> PyResult<PolicyKind> {
    text(name, value)?
        .parse()
        .map_err(|error| value_error(name, error))
}

pub(crate) fn reset_mode(value: &Bound<'_, PyAny>) -> PyResult<ResetMode> {
    match &*text("mode", value)? {
        "drain" => Ok(ResetMode::Drain),
        "fenced" => Ok(ResetMode::Fenced),
        other => Err(value_error(
            "mode",
            format!("{other:?} is neither 'drain' nor 'fenced'"),
        )),
    }
}

/// One position a key. The largest `u32` means "none" to the engine and cannot be told.
pub(crate) fn positions(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    numbers(name, value, |position| {
        u32::try_from(position)
            .ok()
            .filter(|&position| position != u32::MAX)
    })
}

/// Ids, sizes or places: whatever numbers a `T` can hold.
pub(crate) fn ids<T: TryFrom<i64>>(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    numbers(name, value, |id| T::try_from(id).ok())
}

/// The integers of an array or iterable, each as what `convert` makes of it; what it refuses is out
/// of range.
fn numbers<T>(
    name: &str,
    value: &Bound<'_, PyAny>,
    convert: impl Fn(i64) -> Option<T>,
) -> PyResult<Vec<T>> {
    let number = |i: usize, number: i64| {
        convert(number).ok_or_else(|| {
            value_error(&format!("{name}[{i}]"), format!("{number} is out of range"))
        })
    };
    if let Ok(array) = value.cast::<PyArray1<i64>>() {
        return from_array(name, array, number);
    }
    if let Ok(array) = value.cast::<PyArray1<i32>>() {
        return from_array(name, array, number);
    }
    let items = value
        .try_iter()
        .map_err(|_| type_error(name, "an iterable of int", value))?;
    items
        .enumerate()
        .map(|(i, item)| number(i, integer(&format!("{name}[{i}]"), &item?)?))
        .collect()
}

fn from_array<E: Element + Copy + Into<i64>, T>(
    name: &str,
    array: &Bound<'_, PyArray1<E>>,
    number: impl Fn(usize, i64) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let array = array
        .try_readonly()
        .map_err(|error| value_error(name, error))?;
    let each = |(i, &n): (usize, &E)| number(i, n.into());
    match array.as_slice() {
        Ok(slice) => slice.iter().enumerate().map(each).collect(),
        Err(_) => array.as_array().iter().enumerate().map(each).collect(),
    }
}
