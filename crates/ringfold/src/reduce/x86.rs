//! Half precision with the conversion instructions of x86 (F16C, AVX-512), which the compiler does
//! not use by itself. The results equal those of the software conversions.

use std::arch::x86_64::*;

use super::spread::{ROW, RowFormat};

type Stored = [u16; ROW];
type Wide = [f32; ROW];

/// The rounding of the software conversions.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// Conversions of eight elements at a time.
pub(super) struct F16c;

impl RowFormat for F16c {
    type Stored = u16;
    type Wide = f32;

    #[inline(always)]
    unsafe fn widen(stored: Stored) -> Wide {
        let mut wide = [0.0; ROW];
        for at in (0..ROW).step_by(8) {
            // SAFETY: eight elements from `at` are inside the row, both sides; unaligned access;
            // F16C by contract.
            unsafe {
                let halves = _mm_loadu_si128(stored.as_ptr().add(at).cast());
                _mm256_storeu_ps(wide.as_mut_ptr().add(at), _mm256_cvtph_ps(halves));
            }
        }
        wide
    }

    #[inline(always)]
    unsafe fn narrow(wide: Wide) -> Stored {
        let mut stored = [0; ROW];
        for at in (0..ROW).step_by(8) {
            // SAFETY: as in `widen`.
            unsafe {
                let halves = _mm256_cvtps_ph::<NEAREST>(_mm256_loadu_ps(wide.as_ptr().add(at)));
                _mm_storeu_si128(stored.as_mut_ptr().add(at).cast(), halves);
            }
        }
        stored
    }

    #[inline(always)]
    fn factor(factor: f64) -> f32 {
        factor as f32
    }
}

/// Conversions of sixteen elements at a time: the whole row.
pub(super) struct Avx512;

impl RowFormat for Avx512 {
    type Stored = u16;
    type Wide = f32;

    #[inline(always)]
    unsafe fn widen(stored: Stored) -> Wide {
        let mut wide = [0.0; ROW];
        // SAFETY: sixteen elements on both sides; unaligned access; AVX-512 by contract.
        unsafe {
            let halves = _mm256_loadu_si256(stored.as_ptr().cast());
            _mm512_storeu_ps(wide.as_mut_ptr(), _mm512_cvtph_ps(halves));
        }
        wide
    }

    #[inline(always)]
    unsafe fn narrow(wide: Wide) -> Stored {
        let mut stored = [0; ROW];
        // SAFETY: as in `widen`.
        unsafe {
            let halves = _mm512_cvtps_ph::<NEAREST>(_mm512_loadu_ps(wide.as_ptr()));
            _mm256_storeu_si256(stored.as_mut_ptr().cast(), halves);
        }
        stored
    }

    #[inline(always)]
    fn factor(factor: f64) -> f32 {
        factor as f32
    }
}
