//! Calls of cuBLASLt for one form of a product.

use super::matmul::{Handle, failed};
use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver;
use gt_ir::{DType, Result, Slot};
use gt_kernels::matmul::{Bias, Form, Origin, Side};
use gt_sync::Mutex;
use std::ffi::c_void;
use std::sync::Arc;
use sys::cublasLtMatmulDescAttributes_t as DescWhat;
use sys::cublasLtMatmulPreferenceAttributes_t as PrefWhat;
use sys::cublasLtMatrixLayoutAttribute_t as LayoutWhat;

/// The most scratch memory an algorithm may take: what the library advises for Hopper.
const WORKSPACE: usize = 32 << 20;
/// How many algorithms are asked for; the first that can run is taken, or the fastest where they are measured.
const CANDIDATES: usize = 16;

/// An algorithm and its scratch memory.
#[derive(Clone, Copy)]
pub(super) struct Found {
    algo: sys::cublasLtMatmulAlgo_t,
    pub(super) workspace: usize,
}

impl Found {
    /// All that the library needs to know it again.
    pub(super) fn words(&self) -> [u64; 8] {
        self.algo.data
    }
}

/// Element type, type of sums, and type of the factors.
fn types(form: &Form) -> (sys::cudaDataType_t, sys::cublasComputeType_t, sys::cudaDataType_t) {
    use sys::cublasComputeType_t as Compute;
    use sys::cudaDataType_t as Type;
    match form.dtype {
        DType::F16 => (Type::CUDA_R_16F, Compute::CUBLAS_COMPUTE_32F, Type::CUDA_R_32F),
        DType::BF16 => (Type::CUDA_R_16BF, Compute::CUBLAS_COMPUTE_32F, Type::CUDA_R_32F),
        DType::F64 => (Type::CUDA_R_64F, Compute::CUBLAS_COMPUTE_64F, Type::CUDA_R_64F),
        DType::F32 if form.tf32 => {
            (Type::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F_FAST_TF32, Type::CUDA_R_32F)
        }
        DType::F32 => (Type::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F, Type::CUDA_R_32F),
        DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
            unreachable!("integers have launches and no form")
        }
    }
}

fn pointer<T>(x: &T) -> *const c_void {
    (x as *const T).cast()
}

/// A matrix layout of the library's.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(form: &Form, side: &Side) -> Result<Layout> {
        let layout =
            lt::create_matrix_layout(types(form).0, side.rows as u64, side.cols as u64, side.ld as i64);
        let layout = Layout(layout.map_err(|e| failed("layout", e))?);
        let (count, stride) = (form.batches as i32, side.batch as i64);
        // SAFETY: both attributes are set from values of the size the library documents for them.
        unsafe {
            let count = pointer(&count);
            lt::set_matrix_layout_attribute(
                layout.0,
                LayoutWhat::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                count,
                4,
            )
            .map_err(|e| failed("batches", e))?;
            let what = LayoutWhat::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
            lt::set_matrix_layout_attribute(layout.0, what, pointer(&stride), 8)
                .map_err(|e| failed("batch stride", e))?;
        }
        Ok(layout)
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        _ = unsafe { lt::destroy_matrix_layout(self.0) };
    }
}

/// A description of a product.
struct Desc(sys::cublasLtMatmulDesc_t);

impl Desc {
    fn new(form: &Form) -> Result<Desc> {
        let (_, compute, factors) = types(form);
        let desc = Desc(lt::create_matmul_desc(compute, factors).map_err(|e| failed("product", e))?);
        // The library's left side is the plan's right one.
        desc.set(DescWhat::CUBLASLT_MATMUL_DESC_TRANSA, &(form.b.transposed as i32))?;
        desc.set(DescWhat::CUBLASLT_MATMUL_DESC_TRANSB, &(form.a.transposed as i32))?;
        use sys::cublasLtEpilogue_t as Epilogue;
        let epilogue = match (&form.bias, form.relu) {
            (Bias::Columns(_), false) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
            (Bias::Columns(_), true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
            (_, true) => Epilogue::CUBLASLT_EPILOGUE_RELU,
            (_, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        };
        desc.set(DescWhat::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue as u32))?;
        if let Bias::Columns(side) = &form.bias
            && form.batches > 1
        {
            desc.set(DescWhat::CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, &(side.batch as i64))?;
        }
        Ok(desc)
    }

    /// Sets an attribute from a value of the size the library documents for it.
    fn set<T>(&self, what: DescWhat, value: &T) -> Result<()> {
        // SAFETY: the value has the size that is passed along, and the library copies it.
        unsafe { lt::set_matmul_desc_attribute(self.0, what, pointer(value), size_of::<T>()) }
            .map_err(|e| failed("attribute", e))
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        _ = unsafe { lt::destroy_matmul_desc(self.0) };
    }
}

/// What an algorithm must keep to.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(form: &Form) -> Result<Preference> {
        let pref = Preference(lt::create_matmul_pref().map_err(|e| failed("preference", e))?);
        pref.set(PrefWhat::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE)?;
        // Split sums meet in the type they are computed in, in order.
        let schemes = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        pref.set(PrefWhat::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes)?;
        let added = match &form.bias {
            Bias::Matrix(side) => side.alignment,
            Bias::None | Bias::Columns(_) | Bias::InPlace => form.out.alignment,
        };
        for (what, bytes) in [
            (PrefWhat::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, form.b.alignment),
            (PrefWhat::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, form.a.alignment),
            (PrefWhat::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, added),
            (PrefWhat::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, form.out.alignment),
        ] {
            pref.set(what, &(bytes as u32))?;
        }
        Ok(pref)
    }

    fn set<T>(&self, what: PrefWhat, value: &T) -> Result<()> {
        // SAFETY: the value has the size that is passed along, and the library copies it.
        unsafe { lt::set_matmul_pref_attribute(self.0, what, pointer(value), size_of::<T>()) }
            .map_err(|e| failed("preference", e))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        _ = unsafe { lt::destroy_matmul_pref(self.0) };
    }
}

/// The layouts of b, a, what is added, and the result.
fn layouts(form: &Form) -> Result<[Layout; 4]> {
    let added = match &form.bias {
        Bias::Matrix(side) => side,
        Bias::None | Bias::Columns(_) | Bias::InPlace => &form.out,
    };
    Ok([
        Layout::new(form, &form.b)?,
        Layout::new(form, &form.a)?,
        Layout::new(form, added)?,
        Layout::new(form, &form.out)?,
    ])
}

/// The library's choices for a form that can run, the best first; none if it has no algorithm.
pub(super) fn find(handle: &Handle, form: &Form) -> Result<Vec<Found>> {
    let (desc, layouts, pref) = (Desc::new(form)?, layouts(form)?, Preference::new(form)?);
    if let Bias::Columns(side) = &form.bias {
        // Some versions ask for a pointer before they tell of algorithms; it is not followed.
        desc.set(DescWhat::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &(side.alignment as u64))?;
    }
    let [b, a, c, d] = &layouts;
    // SAFETY: plain numbers, of which the library fills in `count`.
    let mut results: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] = unsafe { std::mem::zeroed() };
    let mut count = 0;
    // SAFETY: descriptors and layouts are alive, and there is room for as many results as are asked for.
    let status = unsafe {
        sys::cublasLtMatmulAlgoGetHeuristic(
            handle.0,
            desc.0,
            b.0,
            a.0,
            c.0,
            d.0,
            pref.0,
            CANDIDATES as i32,
            results.as_mut_ptr(),
            &mut count,
        )
    };
    match status {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => {}
        sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED
        | sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE => {
            return Ok(Vec::new());
        }
        other => other.result().map_err(|e| failed("heuristic", e))?,
    }
    let usable = |r: &&sys::cublasLtMatmulHeuristicResult_t| {
        r.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && r.workspaceSize <= WORKSPACE
    };
    let found = results[..count as usize].iter().filter(usable);
    Ok(found.map(|r| Found { algo: r.algo, workspace: r.workspaceSize }).collect())
}

/// An algorithm that was written down by `Found::words`, if this library still takes it for a form.
pub(super) fn remembered(handle: &Handle, form: &Form, words: [u64; 8]) -> Option<Found> {
    let (desc, layouts) = (Desc::new(form).ok()?, layouts(form).ok()?);
    if let Bias::Columns(side) = &form.bias {
        desc.set(DescWhat::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &(side.alignment as u64)).ok()?;
    }
    let algo = sys::cublasLtMatmulAlgo_t { data: words };
    let [b, a, c, d] = &layouts;
    // SAFETY: plain numbers, which the library fills in.
    let mut result: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
    // SAFETY: descriptors and layouts are alive; the library looks at every field of the algorithm.
    let status =
        unsafe { sys::cublasLtMatmulAlgoCheck(handle.0, desc.0, b.0, a.0, c.0, d.0, &algo, &mut result) };
    let fine = status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS
        && result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS
        && result.workspaceSize <= WORKSPACE;
    fine.then_some(Found { algo, workspace: result.workspaceSize })
}

/// Addresses of the matrices of one call; that of a bias counts where the form has one.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub a: u64,
    pub b: u64,
    pub bias: u64,
    pub out: u64,
}

/// One call for each group of batches that lie at even distances.
pub(super) struct Products {
    handle: Arc<Handle>,
    form: Form,
    found: Found,
    /// Where the algorithm's memory starts in the workspace.
    scratch: usize,
    /// Locked while the address of a bias in it counts.
    desc: Mutex<Desc>,
    layouts: [Layout; 4],
}

// SAFETY: the library only reads layouts, and the descriptor is behind a lock.
unsafe impl Send for Products {}
// SAFETY: as above.
unsafe impl Sync for Products {}

impl Products {
    pub(super) fn new(handle: Arc<Handle>, form: Form, found: Found, scratch: usize) -> Result<Products> {
        let (desc, layouts) = (Mutex::new(Desc::new(&form)?), layouts(&form)?);
        Ok(Products { handle, form, found, scratch, desc, layouts })
    }

    /// The slots that decide where operands lie.
    pub(super) fn slots(&self) -> Vec<u32> {
        let Form { a, b, bias, .. } = &self.form;
        let bias = match bias {
            Bias::Columns(side) | Bias::Matrix(side) => Some(&side.origin),
            Bias::None | Bias::InPlace => None,
        };
        [&a.origin, &b.origin].into_iter().chain(bias).flat_map(|origin| origin.slots()).collect()
    }

    pub(super) fn enqueue(
        &self,
        stream: driver::sys::CUstream,
        addresses: &[u64],
        slots: &[Slot],
        workspace: u64,
    ) -> Result<()> {
        let form = &self.form;
        let size = form.dtype.size();
        let base = |origin: &Origin| origin.address(size, addresses, slots, workspace);
        let moved = |base: u64, elements: isize| base.wrapping_add_signed((elements * size as isize) as i64);
        let (a, b, out) = (base(&form.a.origin), base(&form.b.origin), base(&form.out.origin));
        let bias = match &form.bias {
            Bias::Columns(side) | Bias::Matrix(side) => base(&side.origin),
            Bias::None | Bias::InPlace => 0,
        };
        for call in &form.calls {
            let at = At {
                a: moved(a, call[0]),
                b: moved(b, call[1]),
                bias: moved(bias, call[2]),
                out: moved(out, call[3]),
            };
            self.call(&at, workspace + self.scratch as u64, stream)?;
        }
        Ok(())
    }

    /// One product of matrices that lie as the form says, at these addresses.
    pub(super) fn call(&self, at: &At, workspace: u64, stream: driver::sys::CUstream) -> Result<()> {
        let (added, beta) = match &self.form.bias {
            Bias::None | Bias::Columns(_) => (at.out, 0.0),
            Bias::Matrix(_) => (at.bias, 1.0),
            Bias::InPlace => (at.out, 1.0),
        };
        let (factors, factors_wide) = ([1f32, beta as f32], [1f64, beta]);
        let [alpha, beta] = match self.form.dtype {
            DType::F64 => factors_wide.each_ref().map(pointer),
            _ => factors.each_ref().map(pointer),
        };
        let desc = self.desc.lock();
        if let Bias::Columns(_) = &self.form.bias {
            desc.set(DescWhat::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at.bias)?;
        }
        let [lb, la, lc, ld] = &self.layouts;
        // SAFETY: the operands lie in memory that the caller keeps until the stream is done, with the layouts and the
        // alignment that the algorithm was chosen for; the workspace has the size it asked for.
        unsafe {
            lt::matmul(
                self.handle.0,
                desc.0,
                alpha,
                beta,
                at.b as *const c_void,
                lb.0,
                at.a as *const c_void,
                la.0,
                added as *const c_void,
                lc.0,
                at.out as *mut c_void,
                ld.0,
                &self.found.algo,
                workspace as *mut c_void,
                self.found.workspace,
                stream.cast(),
            )
            .map_err(|e| failed("matmul", e))
        }
    }

    pub(super) fn form(&self) -> &Form {
        &self.form
    }

    pub(super) fn found(&self) -> &Found {
        &self.found
    }
}
