//! The loops' floating-point environment: the default one, whatever the program has set.
//!
//! A thread may have enabled flush-to-zero, another rounding mode or trapping exceptions
//! (`torch.set_flush_denormal`, libraries built with `-ffast-math`, `fesetenv`). Ranks with
//! different settings would compute different sums of the same data, and so would two threads of
//! one rank. Every loop therefore runs under a guard that sets the default environment and restores
//! the thread's own afterwards. If the guard changed the environment, exceptions raised in the loop
//! are not recorded.
//!
//! The instructions that read and set the register count as memory accesses, so the compiler keeps
//! the loops' loads and stores, and thus their arithmetic, between them.
//!
//! Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, 10.2.3 (MXCSR);
//! Arm Architecture Reference Manual for A-profile, C5.2 (FPCR).

/// A guard that restores the thread's floating-point environment when dropped.
///
/// On architectures other than x86-64 and 64-bit ARM the guard does nothing: results follow the
/// thread's settings.
#[must_use]
pub(super) struct FloatEnvironment {
    /// The environment to restore; `None` if it was the default one.
    own: Option<register::Word>,
}

/// The control and status register of SSE and AVX.
#[cfg(target_arch = "x86_64")]
mod register {
    use std::arch::asm;

    pub type Word = u32;

    /// Round to nearest, denormals kept, all exceptions masked.
    pub const DEFAULT: Word = 0x1f80;

    /// The sticky exception flags, which do not affect results.
    pub const FLAGS: Word = 0x3f;

    /// Returns the register's value.
    #[inline(always)]
    pub fn read() -> Word {
        let mut value = 0;
        // SAFETY: stores four bytes to a local; every x86-64 has the register.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack, preserves_flags)) };
        value
    }

    /// Sets the register; `value` has no reserved bits.
    #[inline(always)]
    pub fn write(value: Word) {
        // SAFETY: loads four bytes from a local, which is `DEFAULT` or a value from `read`.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack, preserves_flags))
        };
    }
}

/// The floating-point control register; the exception flags are in another register.
#[cfg(target_arch = "aarch64")]
mod register {
    use std::arch::asm;

    pub type Word = u64;

    /// Round to nearest, denormals kept, no exception traps.
    pub const DEFAULT: Word = 0;

    pub const FLAGS: Word = 0;

    /// Returns the register's value.
    #[inline(always)]
    pub fn read() -> Word {
        let value;
        // SAFETY: every processor of this kind has the register, and any program may read it.
        unsafe { asm!("mrs {}, fpcr", out(reg) value, options(nostack, preserves_flags)) };
        value
    }

    /// Sets the register; `value` has no reserved bits.
    #[inline(always)]
    pub fn write(value: Word) {
        // SAFETY: `value` is from `read` or `DEFAULT`; it takes effect with the next instruction.
        unsafe { asm!("msr fpcr, {}", in(reg) value, options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod register {
    pub type Word = u32;
    pub const DEFAULT: Word = 0;
    pub const FLAGS: Word = 0;

    pub fn read() -> Word {
        DEFAULT
    }

    pub fn write(_: Word) {}
}

impl FloatEnvironment {
    /// Sets the default environment until the guard is dropped. Costs one load if the environment
    /// is already the default.
    #[inline(always)]
    pub fn standard() -> FloatEnvironment {
        let own = register::read();
        if own & !register::FLAGS == register::DEFAULT {
            return FloatEnvironment { own: None };
        }
        register::write(register::DEFAULT);
        FloatEnvironment { own: Some(own) }
    }
}

impl Drop for FloatEnvironment {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(own) = self.own {
            register::write(own);
        }
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::super::scale::scale_at_level;
    use super::super::{Factor, Level, ReductionKernel, Store};
    use super::register;
    use crate::memory::Region;
    use crate::types::{DType, Op};

    /// Flush-to-zero with denormals-are-zero, and rounding towards plus infinity.
    #[cfg(target_arch = "x86_64")]
    const SETTINGS: [register::Word; 2] = [0x8040, 0x4000];
    #[cfg(target_arch = "aarch64")]
    const SETTINGS: [register::Word; 2] = [1 << 24, 1 << 22];

    const FLUSH: register::Word = register::DEFAULT | SETTINGS[0];
    const UPWARDS: register::Word = register::DEFAULT | SETTINGS[1];

    /// Runs `work` under `environment` and checks that the environment is unchanged afterwards,
    /// except for the exception flags.
    fn under<R>(environment: register::Word, work: impl FnOnce() -> R) -> R {
        let own = register::read();
        register::write(environment);
        let result = work();
        let after = register::read();
        register::write(own);
        assert_eq!(
            after & !register::FLAGS,
            environment,
            "the environment is not restored"
        );
        result
    }

    fn region(values: &mut [f32]) -> Region {
        // SAFETY: every test keeps its arrays until after the last use of their regions.
        unsafe { Region::new(values.as_mut_ptr().cast(), size_of_val(values)) }
    }

    #[test]
    fn sums_keep_denormals_on_a_thread_that_flushes_them() {
        for level in Level::available() {
            let kernel = ReductionKernel::at_level(Op::Sum, DType::F32, level).expect("a kernel");
            for sources in 2..=5 {
                let mut values = vec![[f32::from_bits(1); 100]; sources];
                let mut sum = [0.0; 100];
                let from: Vec<Region> = values.iter_mut().map(|v| region(v)).collect();
                under(FLUSH, || kernel.fold(region(&mut sum), &from));
                let due = f32::from_bits(sources as u32).to_bits();
                assert!(sum.iter().all(|value| value.to_bits() == due), "{sum:?}");
            }
        }
    }

    #[test]
    fn spread_sums_keep_denormals_on_a_thread_that_flushes_them() {
        for level in Level::available() {
            let kernel = ReductionKernel::at_level(Op::Sum, DType::F32, level).expect("a kernel");
            let mut values = [[f32::from_bits(3); 100]; 2];
            let both: Vec<Region> = values.iter_mut().map(|v| region(v)).collect();
            let mut parts = Vec::new();
            let spread = || kernel.spread(&both, &both, None, Store::Cached, &mut parts);
            under(FLUSH, spread).expect("a spread sum");
            let all = values.iter().flatten();
            assert!(all.clone().all(|value| value.to_bits() == 6), "{values:?}");
        }
    }

    #[test]
    fn averages_round_to_nearest_on_a_thread_that_rounds_up() {
        for level in Level::available() {
            let mut values = [1.0_f32; 33];
            let all = region(&mut values);
            let third = Factor::Divide(3);
            under(UPWARDS, || {
                scale_at_level(DType::F32, all, all, third, level)
            })
            .expect("a scale");
            assert!(values.iter().all(|value| *value == 1.0 / 3.0), "{values:?}");
        }
    }
}
