//! The keyword arguments of `OffloadingManager`.

use kvferry::{Config, KeyHashing};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::arguments::{boolean, integer, policy};
use crate::errors::value_error;

/// A configuration from what the caller gave; an option that is None is left at its default.
pub(crate) fn config(
    capacity: &Bound<'_, PyAny>,
    policy_name: Option<&Bound<'_, PyAny>>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Config> {
    let mut config = Config::new(integer("capacity", capacity)?);
    if let Some(name) = policy_name {
        config = config.policy(policy("policy", name)?);
    }
    let (mut seed, mut uniform) = (None, false);
    for (name, value) in options.into_iter().flatten() {
        let name = name.cast::<PyString>()?.to_cow()?;
        match &*name {
            _ if value.is_none() => known(&name)?,
            "hash_seed" => seed = Some(integer(&name, &value)?),
            "uniform_keys" => uniform = boolean(&name, &value)?,
            _ => config = set(config, &name, &value)?,
        }
    }
    match (seed, uniform) {
        (Some(_), true) => Err(value_error("hash_seed", "uniform keys are not hashed")),
        (Some(seed), false) => Ok(config.hashing(KeyHashing::Seeded(seed))),
        (None, true) => Ok(config.hashing(KeyHashing::Uniform)),
        (None, false) => Ok(config),
    }
}

fn set(config: Config, name: &str, value: &Bound<'_, PyAny>) -> PyResult<Config> {
    Ok(match name {
        "key_bytes" => config.key_bytes(integer(name, value)?),
        "group_bytes" => config.group_bytes(integer(name, value)?),
        "store_threshold" => config.store_threshold(integer(name, value)?),
        "max_tracker_size" => config.max_tracker_size(integer(name, value)?),
        "enable_events" => config.events(boolean(name, value)?),
        "max_event_keys" => config.max_event_keys(integer(name, value)?),
        "touch_log_capacity" => config.touch_log_capacity(integer(name, value)?),
        "pending_timeout_us" => config.pending_timeout_us(Some(integer(name, value)?)),
        _ => return Err(unknown(name)),
    })
}

const NAMES: [&str; 10] = [
    "key_bytes",
    "group_bytes",
    "store_threshold",
    "max_tracker_size",
    "enable_events",
    "max_event_keys",
    "touch_log_capacity",
    "pending_timeout_us",
    "hash_seed",
    "uniform_keys",
];

fn known(name: &str) -> PyResult<()> {
    if NAMES.contains(&name) {
        return Ok(());
    }
    Err(unknown(name))
}

fn unknown(name: &str) -> PyErr {
    PyTypeError::new_err(format!("OffloadingManager has no argument {name:?}"))
}
