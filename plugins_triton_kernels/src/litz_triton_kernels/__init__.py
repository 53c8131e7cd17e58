"""litz-triton-kernels: Triton kernels that the user wrote, as operations of the schedule that litz launches itself.

`plugin` has the hook. `lowering` makes operations of torch's higher-order ops. `launch` has Triton compile a kernel
and launches the result. `torch_table` has the private functions of torch that these need. Without this plugin litz
calls such a kernel as eager does: torch copies all that the kernel writes, and Triton launches it.
"""
