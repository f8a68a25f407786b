//! CPU levels: the vector instructions that the loops are compiled for, and their detection.
//!
//! Each loop is one generic body, compiled once per level. All levels give the same results, except
//! for the choice of NaN in an operation on NaNs. The level is chosen once per process.

use std::sync::OnceLock;

use super::environment::FloatEnvironment;
use crate::memory::Region;
use crate::sys::fork;

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Instructions of every CPU of the architecture: SSE2 or NEON.
    Baseline,
    /// AVX2 with the half-precision conversions (F16C).
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Level {
    /// Returns the levels of this machine, lowest first.
    pub fn available() -> Vec<Level> {
        [Level::Baseline, Level::Avx2, Level::Avx512]
            .into_iter()
            .filter(|level| level.is_available())
            .collect()
    }

    /// Returns the highest level of this machine, which kernels use by default.
    pub fn current() -> Level {
        static CURRENT: OnceLock<Level> = OnceLock::new();
        let highest = || Level::available().pop().unwrap_or(Level::Baseline);
        *fork::made_once(&CURRENT, highest)
    }

    /// Returns the usual name of the instructions.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Baseline if cfg!(target_arch = "x86_64") => "sse2",
            Level::Baseline if cfg!(target_arch = "aarch64") => "neon",
            Level::Baseline => "baseline",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    /// Whether this machine supports the level.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match self {
            Level::Baseline => true,
            Level::Avx2 => avx2,
            Level::Avx512 => avx2 && avx512,
        }
    }

    /// Whether this machine supports the level.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        self == Level::Baseline
    }
}

/// A loop over buffers. `Extra` is the type of an additional parameter.
pub(super) trait LoopBody<Extra> {
    /// Runs the loop. Must be `#[inline(always)]`, with everything that it calls, to be compiled
    /// for its caller's level.
    ///
    /// # Safety
    /// * All regions have equally many elements, of the loop's type for sources and for `into`.
    /// * `into` is one of `sources`, if both have the same type, or overlaps none of them. There is
    ///   at least one source.
    /// * The machine has the instructions of the level that the body is compiled for.
    unsafe fn run(into: Region, sources: &[Region], extra: Extra);
}

/// A [`LoopBody`] compiled for some level, under the same contract. Runs in the default
/// floating-point environment.
pub(super) type CompiledLoop<Extra> = unsafe fn(Region, &[Region], Extra);

macro_rules! compiled_for {
    ($($(#[$attribute:meta])* $name:ident)*) => {
        $(
            $(#[$attribute])*
            unsafe fn $name<B: LoopBody<Extra>, Extra>(
                into: Region,
                sources: &[Region],
                extra: Extra,
            ) {
                let _environment = FloatEnvironment::standard();
                // SAFETY: the same contract.
                unsafe { B::run(into, sources, extra) }
            }
        )*
    };
}

compiled_for! {
    baseline
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c")]
    avx2
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    avx512
}

/// Returns `B` compiled for `level`.
pub(super) fn compiled<B: LoopBody<Extra>, Extra>(level: Level) -> CompiledLoop<Extra> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::<B, Extra>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::<B, Extra>,
        _ => baseline::<B, Extra>,
    }
}
