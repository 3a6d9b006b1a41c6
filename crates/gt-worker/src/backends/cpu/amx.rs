//! The tiles of AMX: registers of sixteen rows of 64 bytes, and whether this process may use them.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Rows of a register, and terms of bf16 in a row of it.
pub const TILE: usize = 16;
pub const TERMS: usize = 32;

/// True if this processor has such tiles and the system lets this process use them.
pub fn usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| there() && granted())
}

fn there() -> bool {
    const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
    let saved = __cpuid(1).ecx & 1 << 27 != 0;
    saved && __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & BF16_AND_TILE == BF16_AND_TILE
}

/// Asks the system, which keeps room for so large registers only for those who ask.
#[cfg(target_os = "linux")]
fn granted() -> bool {
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: asks for a right and changes nothing else.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn granted() -> bool {
    false
}

/// What the registers look like: all of sixteen rows of 64 bytes.
#[repr(C, align(64))]
struct Shape {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

static SHAPE: Shape = {
    let (mut bytes, mut rows) = ([0; 16], [0; 16]);
    let mut i = 0;
    while i < 8 {
        (bytes[i], rows[i]) = (64, TILE as u8);
        i += 1;
    }
    Shape { palette: 1, start: 0, reserved: [0; 14], bytes, rows }
};

/// While it lives, this thread's registers are tiles.
pub struct Tiles(());

impl Tiles {
    /// # Safety
    /// They are `usable`.
    pub unsafe fn begin() -> Tiles {
        // SAFETY: as the caller promises; the shape is one the processor takes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPE, options(nostack, readonly)) };
        Tiles(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: there are such registers, or nothing of this type would be.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
