//! A plan's matmul through cuBLASLt: descriptors and algorithm are found once, a run only gives addresses.

use crate::Res;
use crate::device::{Device, Memory};
use cudarc::cublaslt::{result as lt, sys};
use gt_compiler::{Matmul, Place, Storage, Tensor};
use gt_ir::{DType, Slot};
use std::ffi::c_void;

/// The library's handle and its scratch memory.
pub struct Library {
    handle: sys::cublasLtHandle_t,
    workspace: Memory,
}

const WORKSPACE: usize = 32 << 20;

impl Library {
    pub fn load(device: &Device) -> Res<Library> {
        Ok(Library { handle: lt::create_handle()?, workspace: device.alloc(WORKSPACE)? })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: every product made with the handle has been waited for.
        if let Err(error) = unsafe { lt::destroy_handle(self.handle) } {
            eprintln!("cublaslt: destroy: {error}");
        }
    }
}

/// A matmul made ready. The library counts columns first, so it is asked for the transposed product: its A is the
/// plan's b and its B the plan's a.
pub struct Product {
    matmul: Matmul,
    desc: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algo: sys::cublasLtMatmulAlgo_t,
}

/// A matrix as the library sees it: columns first, `ld` elements apart, perhaps to be transposed.
struct Side {
    transposed: bool,
    rows: usize,
    cols: usize,
    ld: usize,
}

/// The plan's matrix of shape `rows` x `cols`, seen columns first (that is, as its transpose).
fn side(t: &Tensor, rows: usize, cols: usize) -> Res<Side> {
    let &[row, col] = t.map.strides.as_slice() else {
        return Err("matmul: batches are no part of the smoke test".into());
    };
    if col == 1 && row >= cols as isize {
        Ok(Side { transposed: false, rows: cols, cols: rows, ld: row as usize })
    } else if row == 1 && col >= rows as isize {
        Ok(Side { transposed: true, rows, cols, ld: col as usize })
    } else {
        Err(format!("matmul: no leading dimension says {t}: pack it first").into())
    }
}

/// The address of a tensor's first element.
fn address(t: &Tensor, addresses: &[u64], slots: &[Slot]) -> u64 {
    addresses[t.storage as usize].wrapping_add_signed((t.map.offset(slots) * t.dtype.size() as isize) as i64)
}

/// What the address of a storage is a multiple of in every run. Whole allocations of CUDA start at multiples of 256.
fn storage_alignment(storage: &Storage) -> u32 {
    match storage.place {
        Place::Input(_) | Place::Out => 256,
        Place::Arena(offset) => 1 << offset.trailing_zeros().min(8),
    }
}

/// What the address of a tensor is a multiple of in every run, slice starts included.
fn alignment(t: &Tensor, storages: &[Storage]) -> u32 {
    let moves = t.map.slots.iter().map(|&(_, factor)| factor).chain([t.map.offset]);
    let bytes = moves.map(|elements| elements * t.dtype.size() as isize);
    let inside = bytes.fold(256, |most, b| most.min(1 << b.trailing_zeros().min(8)));
    inside.min(storage_alignment(&storages[t.storage as usize]))
}

fn pointer<T>(x: &T) -> *const c_void {
    (x as *const T).cast()
}

impl Product {
    /// Finds the algorithm, before anything is known of a run.
    pub fn prepare(library: &Library, matmul: &Matmul, storages: &[Storage]) -> Res<Product> {
        use sys::cublasLtMatmulDescAttributes_t as Desc;
        use sys::cublasLtMatmulPreferenceAttributes_t as Pref;
        let Matmul { m, n, k, a, b, .. } = matmul;
        let ty = match a.dtype {
            DType::F32 => sys::cudaDataType_t::CUDA_R_32F,
            DType::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
            other => return Err(format!("matmul: {other} is no part of the smoke test").into()),
        };
        let (left, right) = (side(b, *k, *n)?, side(a, *m, *k)?);
        let out = Side { transposed: false, rows: *n, cols: *m, ld: *n };
        let layout = |s: &Side| lt::create_matrix_layout(ty, s.rows as u64, s.cols as u64, s.ld as i64);
        let layouts = [layout(&left)?, layout(&right)?, layout(&out)?];
        // Full f32: CUBLAS_COMPUTE_32F never falls back to TF32.
        let desc = lt::create_matmul_desc(
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cudaDataType_t::CUDA_R_32F,
        )?;
        // SAFETY: every attribute is set from a value of the size the library documents for it, and the
        // descriptors live until `drop`.
        unsafe {
            for (what, side) in
                [(Desc::CUBLASLT_MATMUL_DESC_TRANSA, left), (Desc::CUBLASLT_MATMUL_DESC_TRANSB, right)]
            {
                lt::set_matmul_desc_attribute(desc, what, pointer(&(side.transposed as i32)), 4)?;
            }
            if let Some(bias) = &matmul.bias {
                if bias.map.strides.as_slice() != [0, 1] {
                    return Err(
                        "matmul: expected a bias per column, any other is no part of the smoke test".into()
                    );
                }
                let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
                lt::set_matmul_desc_attribute(
                    desc,
                    Desc::CUBLASLT_MATMUL_DESC_EPILOGUE,
                    pointer(&epilogue),
                    4,
                )?;
            }
            let pref = lt::create_matmul_pref()?;
            let max = Pref::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            lt::set_matmul_pref_attribute(pref, max, pointer(&WORKSPACE), 8)?;
            let to = storage_alignment(&storages[matmul.out as usize]);
            for (what, bytes) in [
                (Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(b, storages)),
                (Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(a, storages)),
                (Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, to),
                (Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, to),
            ] {
                lt::set_matmul_pref_attribute(pref, what, pointer(&bytes), 4)?;
            }
            let [la, lb, lc] = layouts;
            let found = lt::get_matmul_algo_heuristic(library.handle, desc, la, lb, lc, lc, pref);
            lt::destroy_matmul_pref(pref)?;
            Ok(Product { matmul: matmul.clone(), desc, layouts, algo: found?.algo })
        }
    }

    /// True if slots decide where an operand lies. A captured graph keeps addresses, so it cannot follow them.
    pub fn moves(&self) -> bool {
        let Matmul { a, b, bias, .. } = &self.matmul;
        [Some(a), Some(b), bias.as_ref()].into_iter().flatten().any(|t| !t.map.slots.is_empty())
    }

    /// Puts the product on the stream, or into the graph being captured.
    pub fn launch(&self, device: &Device, library: &Library, addresses: &[u64], slots: &[Slot]) -> Res<()> {
        let Matmul { a, b, bias, out, .. } = &self.matmul;
        let at = |t: &Tensor| address(t, addresses, slots) as *const c_void;
        let (one, zero) = (1f32, 0f32);
        let out = addresses[*out as usize] as *mut c_void;
        let [la, lb, lc] = self.layouts;
        // SAFETY: the operands lie in memory that the caller keeps until the stream is done, with the layouts and
        // the alignment that the algorithm was chosen for.
        unsafe {
            if let Some(bias) = bias {
                let what = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
                lt::set_matmul_desc_attribute(self.desc, what, pointer(&at(bias)), 8)?;
            }
            lt::matmul(
                library.handle,
                self.desc,
                pointer(&one),
                pointer(&zero),
                at(b),
                la,
                at(a),
                lb,
                out,
                lc,
                out,
                lc,
                &self.algo,
                library.workspace.address as *mut c_void,
                WORKSPACE,
                device.stream.cu_stream().cast(),
            )?;
        }
        Ok(())
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // SAFETY: made in `prepare`, destroyed once.
        unsafe {
            let _ = lt::destroy_matmul_desc(self.desc);
            for layout in self.layouts {
                let _ = lt::destroy_matrix_layout(layout);
            }
        }
    }
}
