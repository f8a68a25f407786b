#![doc = include_str!("../README.md")]

mod api;
mod call;
mod device;
mod driver;
mod event;
mod link;
mod memory;
mod module;
mod operation;
mod pinned;
mod ptx;
mod queue;
mod report;
mod settings;
mod stepping;
mod stream;
