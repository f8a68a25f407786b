//! The tuner: the policy that chooses the way of each call.
//!
//! [`choose`] applies the settings to the prices that [`model`] computes from [`terms`] and
//! [`constants`]. [`tuning`] holds the inputs. Nothing is measured while calls run: [`probe`] and
//! [`fit`] turn earlier measurements into constants. A choice depends only on values that are equal
//! on all ranks.

pub mod allowed;
pub mod calibration;
pub mod channels;
pub mod choose;
pub mod constants;
pub mod corrections;
pub mod cost;
pub mod cost_table;
pub mod devices;
pub mod fit;
pub mod limits;
pub mod links;
pub mod model;
pub mod names;
pub mod parameters;
pub mod plugin;
pub mod probe;
pub mod question;
pub mod rdma;
pub mod reading;
pub mod registration;
pub mod rules;
pub mod terms;
pub mod tuning;
pub mod weights;

pub use allowed::AlgoFilter;
pub use constants::Constants;
pub use cost_table::CostTable;
pub use devices::DeviceConstants;
pub use limits::Limits;
pub use plugin::Plugin;
pub use question::{OrderDemand, Question};
pub use rdma::RdmaCosts;
pub use registration::MemoryCosts;
pub use rules::{Rule, Rules};
pub use tuning::{Explanation, Reason, Tuning};
