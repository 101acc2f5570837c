//! Replays request traces through the kvferry engine.
#![forbid(unsafe_code)]
