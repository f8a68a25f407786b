//! What the processes of this host show of their calls: `ringfold top` and `ringfold metrics`.
//!
//! Every process of a job has a board for each communicator (`ringfold::internals::board`), which
//! is read without its help. `jobs` finds out which processes belong together, `rates` compares two
//! samples, `table` is the table of `top`, `serve` answers Prometheus.

mod jobs;
pub mod metrics;
mod rates;
mod serve;
mod table;
pub mod top;
