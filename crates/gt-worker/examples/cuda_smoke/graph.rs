//! CUDA graphs: captured from the stream, replayed, and changed without being made again.

use crate::Res;
use crate::device::pointers;
use cudarc::driver::{CudaStream, result, sys};

/// Work captured from a stream.
pub struct Captured {
    graph: sys::CUgraph,
    /// The last node of each step.
    nodes: Vec<sys::CUgraphNode>,
}

impl Captured {
    /// Captures what `enqueue` puts on the stream for each of `steps`; nothing runs.
    pub fn new(
        stream: &CudaStream,
        steps: usize,
        mut enqueue: impl FnMut(usize) -> Res<()>,
    ) -> Res<Captured> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let mut nodes = Vec::with_capacity(steps);
        // SAFETY: the stream is not the default one and captures nothing yet; the capture ends here in any case.
        unsafe {
            result::stream::begin_capture(stream.cu_stream(), mode)?;
            let done = (0..steps).try_for_each(|step| {
                enqueue(step)?;
                nodes.push(last_node(stream)?);
                Ok(())
            });
            let graph = result::stream::end_capture(stream.cu_stream());
            let captured = Captured { graph: graph?, nodes };
            done.map(|()| captured)
        }
    }

    pub fn len(&self) -> Res<usize> {
        let mut len = 0;
        // SAFETY: with no array given only the count is written.
        unsafe { sys::cuGraphGetNodes(self.graph, std::ptr::null_mut(), &mut len).result()? };
        Ok(len)
    }
}

/// The node on which the next work on a capturing stream would wait.
fn last_node(stream: &CudaStream) -> Res<sys::CUgraphNode> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut nodes, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
    // SAFETY: the driver's array is read before the stream is used again; what is not asked for is null.
    unsafe {
        let (id, graph) = (std::ptr::null_mut(), std::ptr::null_mut());
        let stream = stream.cu_stream();
        sys::cuStreamGetCaptureInfo_v3(stream, &mut status, id, graph, &mut nodes, &mut edges, &mut count)
            .result()?;
        if count != 1 {
            Err(format!("capture: a step ends in {count} nodes, expected 1").into())
        } else {
            Ok(*nodes)
        }
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        if let Err(error) = unsafe { result::graph::destroy(self.graph) } {
            eprintln!("cuda: graph destroy: {error}");
        }
    }
}

/// A graph that can be launched. Keeps neither memory nor modules alive: the caller does.
pub struct Graph {
    captured: Captured,
    exec: sys::CUgraphExec,
}

impl Graph {
    pub fn new(captured: Captured) -> Res<Graph> {
        // SAFETY: the graph is whole.
        let exec = unsafe { result::graph::instantiate(captured.graph, sys::CUgraphInstantiate_flags(0))? };
        Ok(Graph { captured, exec })
    }

    pub fn launch(&self, stream: &CudaStream) -> Res<()> {
        // SAFETY: the caller keeps the memory and modules that the graph's nodes name.
        unsafe { result::graph::launch(self.exec, stream.cu_stream())? };
        Ok(())
    }

    /// Gives the kernel of one step other arguments, from the next launch on.
    pub fn set_kernel(&self, step: usize, words: &mut [u64]) -> Res<()> {
        let mut args = pointers(words);
        // SAFETY: the node is a kernel that takes as many eight-byte arguments as there are words.
        unsafe {
            let mut params: sys::CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
            let node = self.captured.nodes[step];
            sys::cuGraphKernelNodeGetParams_v2(node, &mut params).result()?;
            params.kernelParams = args.as_mut_ptr();
            Ok(sys::cuGraphExecKernelNodeSetParams_v2(self.exec, node, &params).result()?)
        }
    }

    /// Takes over all arguments of another capture of the same steps.
    pub fn update(&self, captured: &Captured) -> Res<()> {
        // SAFETY: both graphs are whole; the driver refuses one of another shape.
        unsafe {
            let mut info: sys::CUgraphExecUpdateResultInfo = std::mem::zeroed();
            sys::cuGraphExecUpdate_v2(self.exec, captured.graph, &mut info)
                .result()
                .map_err(|error| format!("graph update: {error}, {:?}", info.result).into())
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        if let Err(error) = unsafe { result::graph::exec_destroy(self.exec) } {
            eprintln!("cuda: graph destroy: {error}");
        }
    }
}
