//! Some steps of a plan as the driver runs them at once: captured, and given other arguments.

use super::driver::{Stream, check, log_drop};
use super::lane::Lane;
use super::steps::{Bound, Launch, Ready, Steps};
use cudarc::driver::{result, sys};
use gt_ir::{Error, Result};
use std::ops::Range;

/// What the driver runs.
pub(super) struct Exec {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    pub(super) nodes: Vec<Node>,
}

// SAFETY: the handles may be used from any thread whose context is current, one at a time.
unsafe impl Send for Exec {}

/// A launch of ours in a graph.
pub(super) struct Node {
    node: sys::CUgraphNode,
    step: u32,
    /// Which of the step's launches.
    at: u32,
    /// What it calls scratch memory is the workspace.
    pub(super) packs: bool,
}

impl Node {
    pub(super) fn launch<'a>(&self, steps: &'a Steps) -> &'a Launch {
        match &steps.list[self.step as usize] {
            Ready::Kernels { list, .. } | Ready::Check { list, .. } => &list[self.at as usize],
            Ready::Product { before, after, .. } => {
                let at = self.at as usize;
                before.get(at).unwrap_or_else(|| &after[at - before.len()])
            }
            Ready::Nothing | Ready::Attend(_) | Ready::Copy { .. } | Ready::Data { .. } => {
                unreachable!("only launches of ours are nodes")
            }
        }
    }
}

impl Exec {
    /// Captures some of the steps; nothing runs.
    pub(super) fn capture(steps: &Steps, which: Range<usize>, run: &Bound, lane: &Lane) -> Result<Exec> {
        let stream = &lane.stream;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is no default one and captures nothing yet; the capture ends below in any case.
        check("capture", unsafe { result::stream::begin_capture(stream.raw(), mode) })?;
        let mut nodes = Vec::with_capacity(steps.launches);
        let put = put(steps, which, run, lane, &mut nodes);
        // SAFETY: the capture was begun above.
        let graph = check("end of capture", unsafe { result::stream::end_capture(stream.raw()) });
        put?;
        let graph = graph?;
        // SAFETY: the graph is whole; it is destroyed with the exec.
        unsafe {
            let flags: sys::CUgraphInstantiate_flags = std::mem::zeroed();
            match check("instantiate", result::graph::instantiate(graph, flags)) {
                Ok(exec) => Ok(Exec { graph, exec, nodes }),
                Err(error) => {
                    let _ = result::graph::destroy(graph);
                    Err(error)
                }
            }
        }
    }

    pub(super) fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the lane keeps the memory, and the steps the kernels, that the nodes name.
        check("launch a graph", unsafe { result::graph::launch(self.exec, stream.raw()) })
    }

    /// Gives a launch other arguments, from the next time on.
    pub(super) fn set(&self, node: &Node, launch: &Launch, run: &Bound) -> Result<()> {
        let mut filled = launch.fill(run);
        let mut args = filled.pointers();
        let params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: launch.kernel.function.0,
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            kernelParams: args.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: the node is this launch's, and the driver copies the arguments.
        let done = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.exec, node.node, &params) };
        check("change a graph", done.result())
    }
}

/// Puts steps into the graph being captured, and notes the nodes of our launches.
fn put(steps: &Steps, which: Range<usize>, run: &Bound, lane: &Lane, nodes: &mut Vec<Node>) -> Result<()> {
    let stream = &lane.stream;
    for i in which {
        let ready = &steps.list[i];
        let mut launches = |list: &[Launch], first: usize, scratch: u64, packs: bool| {
            let run = Bound { scratch, ..*run };
            for (at, launch) in list.iter().enumerate() {
                launch.enqueue(&run, stream)?;
                nodes.push(Node { node: last_node(stream)?, step: i as u32, at: (first + at) as u32, packs });
            }
            Ok::<(), Error>(())
        };
        match ready {
            Ready::Kernels { list, zeroed } => {
                if *zeroed > 0 {
                    // SAFETY: the lane's scratch memory is at least so large.
                    unsafe { stream.zero(run.scratch, *zeroed)? };
                }
                launches(list, 0, run.scratch, false)?;
            }
            Ready::Product { before, prepared, after } => {
                launches(before, 0, run.workspace, true)?;
                prepared.enqueue(stream.raw(), run.addresses, run.slots, run.workspace)?;
                launches(after, before.len(), run.scratch, false)?;
            }
            Ready::Attend(_) | Ready::Copy { .. } => steps.enqueue(i, run, lane)?,
            // Brought before; known to be right.
            Ready::Nothing | Ready::Data { .. } | Ready::Check { .. } => {}
        }
        // All ranks capture it, or none does.
        run.gang.map_or(Ok(()), |gang| gang.step(i, run, lane))?;
    }
    Ok(())
}

/// The node on which the next work on a capturing stream would wait.
fn last_node(stream: &Stream) -> Result<sys::CUgraphNode> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut nodes, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
    let (id, graph) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the driver's array is read before the stream is used again; what is not asked for is null.
    unsafe {
        let found = sys::cuStreamGetCaptureInfo_v3(
            stream.raw(),
            &mut status,
            id,
            graph,
            &mut nodes,
            &mut edges,
            &mut count,
        );
        check("capture", found.result())?;
        if count != 1 {
            return Err(Error::Runtime(format!("cuda: a captured step ends in {count} nodes, expected 1")));
        }
        Ok(*nodes)
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        // SAFETY: both were made in `capture` and are destroyed once; the driver lets a running graph end.
        let done = unsafe {
            result::graph::exec_destroy(self.exec).and_then(|()| result::graph::destroy(self.graph))
        };
        if let Err(error) = done {
            log_drop("destroy a graph", error);
        }
    }
}
