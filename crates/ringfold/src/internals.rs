//! Internals that our own crates use beside the public interface: the command, the bindings, the
//! host of tuner plugins, the plugin for NCCL, and the tests and fuzz targets that look inside.
//!
//! This interface has no guarantee of stability: it changes with the library. Modules have their
//! internal names. An item whose name is clear on its own is exported by the outermost module of
//! its path.

/// See `board`.
pub mod board {
    pub use crate::board::{
        BEGINNING_BYTES, Ended, FILE_SUFFIX, Found, KindOfCall, PeerPicture, Picture, RecordedCall,
        Waiting, find, now_ns,
    };
}

/// See `call`.
pub mod call {
    pub use crate::call::Call;
}

/// See `congestion`.
pub mod congestion {
    pub use crate::congestion::Congestion;
}

/// See `control`.
pub mod control {
    pub use crate::control::absence::Absence;
    pub use crate::control::auth::{
        ANSWER_BYTES, Acceptor, CHALLENGE_BYTES, Claim, HELLO_BYTES, Initiator, PROOF_BYTES,
        Purpose, parse_hello,
    };
    pub use crate::control::frame::{Frame, Presence, RANK_FRAME_BYTES_MAX, Splitter};
    pub use crate::control::hub::Hub;
    pub use crate::control::limit::Limit;
    pub use crate::control::socket::random;
    pub use crate::control::{Health, Launch, RendezvousAddress, Secret, Session, Standing};
    /// See `control::wire`.
    pub mod wire {
        pub use crate::control::wire::{decode, encode};
    }
}

/// See `device`.
pub mod device {
    pub use crate::device::{
        Attributes, Current, Device, DeviceMemory, DeviceRegion, Driver, Event, Pin, PinnedRegion,
        Platform, ProgramStream, Stream,
    };
}

/// See `engine`.
pub mod engine {
    pub use crate::engine::{COLLECTIVES_MAX, plan::slices_in_flight};
}

/// See `lane`.
pub mod lane {
    pub use crate::lane::measure::measure;
}

/// See `communicator::notifier`.
pub mod notifier {
    pub use crate::communicator::notifier::{due, have_returned};
}

/// See `random`.
pub mod random {
    pub use crate::random::{SplitMix64, mix};
}

/// See `reduce`.
pub mod reduce {
    pub use crate::reduce::{Level, ReductionKernel};
}

/// See `schedule`.
pub mod schedule {
    pub use crate::schedule::print::Listing;
    pub use crate::schedule::{Access, Groups, Schedule, Spec};
    /// See `schedule::check`.
    pub mod check {
        pub use crate::schedule::check::{Slices, check, check_sliced, schedules};
    }
}

/// See `setup`.
pub mod setup {
    pub use crate::setup::peer_info::endpoint::Endpoint;
    pub use crate::setup::peer_info::{CoreList, PeerInfo};
    pub use crate::setup::terms::{Leading, Proposal};
    pub use crate::setup::{Explicit, Injection, connect_slowed};
}

/// See `simulate`.
pub mod simulate {
    pub use crate::simulate::{
        BrokenPromise, Carried, ChunkResult, Compute, Delay, Devices, Disturbance, Grants,
        LateMergePolicy, LinkEnds, LinkUse, Links, LongestPath, MergeTarget, Network, PathKind,
        PathPart, Payload, Ports, Promise, RankOnPath, RankReport, Report, Scenario, Sending,
        Server, Signals, Slow, Switch, TimelineLane, Timers, TraceEvent, copies_alone_ps,
        fits_longest_path, longest_path, resolve, run, steps,
    };
    /// See `simulate::goal`.
    pub mod goal {
        pub use crate::simulate::goal::export;
    }
}

/// See `sync`.
pub mod sync {
    pub use crate::sync::lock;
}

/// See `sys`.
pub mod sys {
    pub use crate::sys::library::Library;
    /// See `sys::fork`.
    pub mod fork {
        pub use crate::sys::fork::hold_off;
    }
}

/// See `threads`.
pub mod threads {
    pub use crate::threads::start;
}

/// See `topology`.
pub mod topology {
    pub use crate::topology::host::HOST_ID_BYTES;
    pub use crate::topology::layout::CoreLayout;
    pub use crate::topology::{HostId, Machine};
    /// See `topology::binding`.
    pub mod binding {
        pub use crate::topology::binding::{BindingDecision, BindingQuestion, set};
    }

    /// See `topology::cores`.
    pub mod cores {
        pub use crate::topology::cores::{
            affinity, allowed, available, caches, format_list, nodes, quota,
        };
    }

    /// See `topology::interface_choice`.
    pub mod interface_choice {
        pub use crate::topology::interface_choice::InterfaceChoice;
    }

    /// See `topology::interfaces`.
    pub mod interfaces {
        pub use crate::topology::interfaces::{Candidates, Interface, candidates, interfaces};
    }

    /// See `topology::link`.
    pub mod link {
        pub use crate::topology::link::{Link, rails};
    }

    /// See `topology::neighbours`.
    pub mod neighbours {
        pub use crate::topology::neighbours::{Neighbour, neighbours};
    }
}

/// See `transport`.
pub mod transport {
    pub use crate::transport::{HEADER_BYTES, Header};
    /// See `transport::rdma`.
    pub mod rdma {
        pub use crate::transport::rdma::fuzz;
    }
}

/// See `tune`.
pub mod tune {
    pub use crate::tune::parameters::{Parameter, ParameterTable};
    pub use crate::tune::plugin::{CommunicatorInfo, PluginHost, register_plugin_host};
    pub use crate::tune::terms::{CostTerms, Load, is_two_levels};
    pub use crate::tune::weights::balance;
    pub use crate::tune::{
        Constants, CostTable, DeviceConstants, Limits, Plugin, Question, RdmaCosts, Rule, Rules,
    };
    /// See `tune::calibration`.
    pub mod calibration {
        pub use crate::tune::calibration::{
            Calibration, CalibrationContext, CalibrationSource, describe, path,
        };
        pub use crate::tune::links::{LinkCosts, LinkTimes, crowded_us};
    }

    /// See `tune::cost`.
    pub mod cost {
        pub use crate::tune::cost::{Costs, predict};
    }

    /// See `tune::devices`.
    pub mod devices {
        pub use crate::tune::devices::pipeline::{Line, Pipeline, Shape, Stage};
    }

    /// See `tune::fit`.
    pub mod fit {
        pub use crate::tune::fit::{calibrate, least_squares};
    }

    /// See `tune::names`.
    pub mod names {
        pub use crate::tune::names::{
            ALGORITHMS, COLLECTIVES, NCCL_ALGORITHMS, NCCL_PROTOCOLS, Name, PROTOCOLS,
        };
    }
}

/// See `units`.
pub mod units {
    pub use crate::units::{bytes, nearest, parse_bytes, parse_duration};
    pub use crate::units::{parse_rate_ps_per_byte, parse_time_ps};
}

/// See `wait`.
pub mod wait {
    pub use crate::wait::SPAN_MAX;
}

/// See `verbs`.
pub mod verbs {
    pub use crate::verbs::{
        DeviceChoice, LinkLayer, OpenedPort, Port, PortState, RdmaDevice, Verbs,
    };
}
