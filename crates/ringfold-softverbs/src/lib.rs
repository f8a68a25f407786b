#![doc = include_str!("../README.md")]

mod api;
mod events;
mod fabric;
#[allow(dead_code)]
#[path = "../../ringfold/src/verbs/layout.rs"]
mod layout;
mod memory;
mod pair;
mod queue;
mod settings;
mod wire;
