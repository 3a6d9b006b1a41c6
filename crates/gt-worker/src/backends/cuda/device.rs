//! One GPU: its context, its properties, its memory pool.

use super::driver::{self, check};
use super::stages::stage;
use cudarc::driver::{result, sys};
use gt_ir::{Error, Result, bail};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};

/// A GPU whose primary context this process uses.
pub struct Device {
    /// Its number among those `CUDA_VISIBLE_DEVICES` leaves.
    pub number: u32,
    /// In words.
    pub name: String,
    /// Compute capability: 90 for Hopper.
    pub arch: u32,
    /// Bytes of its memory.
    pub memory: u64,
    context: sys::CUcontext,
    pool: sys::CUmemoryPool,
}

// SAFETY: the driver's handles may be used from any thread whose context is current.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

thread_local! {
    /// The context current on this thread.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// How many GPUs this process sees, or why none.
pub fn count() -> Result<u32> {
    // SAFETY: only tries to open the library.
    if !unsafe { sys::is_culib_present() } {
        bail!(Runtime, "cuda: no NVIDIA driver found (libcuda.so.1)");
    }
    static OWNER: AtomicU32 = AtomicU32::new(0);
    let me = std::process::id();
    match OWNER.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed) {
        // The driver's state is the parent's: no call of it may be made here.
        Err(owner) if owner != me => bail!(
            Runtime,
            "cuda: this process was forked from one that uses CUDA, and the driver works in that one alone: start \
             processes by spawn, or fork before the first use"
        ),
        Err(_) => {}
        Ok(_) => super::leave::before_libraries(),
    }
    stage("driver", || check("init", result::init())).map_err(|e| e.map_message(hint))?;
    static LOADED: Once = Once::new();
    LOADED.call_once(super::leave::before_libraries);
    let count = check("count devices", result::device::get_count())?;
    if count == 0 {
        bail!(Runtime, "cuda: the driver sees no device (CUDA_VISIBLE_DEVICES?)");
    }
    Ok(count as u32)
}

impl Device {
    /// Opens a GPU by its number.
    pub fn open(number: u32) -> Result<Arc<Device>> {
        let count = count()?;
        if number >= count {
            bail!(Value, "cuda: there is no device {number}, expected 0 to {}", count - 1);
        }
        let handle = check("device", result::device::get(number as i32))?;
        // SAFETY: the handle is a device's; the context is kept for good.
        let context = stage("context", || check("context", unsafe { result::primary_ctx::retain(handle) }))?;
        use sys::CUdevice_attribute as A;
        // SAFETY: plain queries of a device that is there.
        let (major, minor, pool, memory) = unsafe {
            let ask = |what| check("device attribute", result::device::get_attribute(handle, what));
            (
                ask(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                ask(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
                check("memory pool", result::device::get_default_mem_pool(handle))?,
                check("memory", result::device::total_mem(handle))?,
            )
        };
        let name = check("device name", result::device::get_name(handle))?;
        let arch = (major * 10 + minor) as u32;
        if arch < 75 {
            bail!(Runtime, "cuda: {name} has compute capability {major}.{minor}, at least 7.5 is needed");
        }
        let device = Device { number, name, arch, memory: memory as u64, context, pool };
        device.enter()?;
        let mut keep = u64::MAX;
        let what = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the attribute is a u64.
        let set = unsafe { result::mem_pool::set_attribute(pool, what, (&raw mut keep).cast()) };
        check("memory pool", set)?;
        // No session waits for memory that another has not given back yet.
        let mut never = 0i32;
        let what = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
        // SAFETY: the attribute is an int.
        let set = unsafe { result::mem_pool::set_attribute(pool, what, (&raw mut never).cast()) };
        check("memory pool", set)?;
        Ok(Arc::new(device))
    }

    /// Makes its context current on this thread, where it is not.
    #[inline]
    pub fn enter(&self) -> Result<()> {
        let mine = self.context as usize;
        if CURRENT.get() == mine {
            return Ok(());
        }
        if let Some(why) = driver::broken() {
            return Err(Error::Runtime(why.into()));
        }
        // SAFETY: the context is kept for good.
        check("context", unsafe { result::ctx::set_current(self.context) })?;
        CURRENT.set(mine);
        Ok(())
    }

    pub fn context(&self) -> sys::CUcontext {
        self.context
    }

    /// `sm_90`.
    pub fn arch_name(&self) -> String {
        format!("sm_{}", self.arch)
    }

    /// Bytes of the device that nobody has, other processes included, and all.
    pub fn free_memory(&self) -> Result<(u64, u64)> {
        self.enter()?;
        let (free, all) = check("memory", result::mem_get_info())?;
        Ok((free as u64, all as u64))
    }

    /// Gives memory that nobody uses back to the system, after all work is done.
    pub fn trim(&self) -> Result<()> {
        self.enter()?;
        check("synchronise", result::ctx::synchronize())?;
        // SAFETY: the pool is the device's own.
        check("trim memory", unsafe { result::mem_pool::trim_to(self.pool, 0) })
    }

    /// True if kernels and copies of this device can use another's memory.
    pub fn reaches(&self, other: &Device) -> Result<bool> {
        let mut reaches = 0;
        let (own, other) = (self.number as i32, other.number as i32);
        // SAFETY: plain query; the numbers of devices are their handles.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&mut reaches, own, other) };
        check("reach of a device", asked.result())?;
        Ok(reaches != 0)
    }

    /// Lets another device read and write this one's pool.
    pub fn show_pool(&self, other: &Device) -> Result<()> {
        let kind = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        // SAFETY: all of it is plain numbers, of which zero is one.
        let mut access: sys::CUmemAccessDesc = unsafe { std::mem::zeroed() };
        access.location.type_ = kind;
        access.location.id = other.number as i32;
        access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        // SAFETY: the pool is this device's own.
        check("memory pool", unsafe { sys::cuMemPoolSetAccess(self.pool, &access, 1) }.result())
    }

    /// Waits for all work on the device.
    pub fn wait(&self) -> Result<()> {
        self.enter()?;
        check("synchronise", result::ctx::synchronize())
    }
}

/// What to do about a driver that does not start.
fn hint(message: String) -> String {
    format!("{message}: is a driver there, and was the process forked after CUDA was used?")
}
