/* Stands for libgcc_s.so.1 when the published wheel is linked: only its names are used.
 *
 * zig links an unwinder of its own into a library. But glibc unwinds the stack of a thread that
 * pthread_exit ends with libgcc_s, and CPython before 3.14 so ends daemon threads that are in a
 * call at the interpreter's exit. Frames of Rust then read the state of one unwinder by the
 * functions of the other: SIGSEGV. Linked like this, the library uses the process' libgcc_s, which
 * manylinux has everywhere. The names are those of the Itanium C++ ABI's exception handling.
 */
#define NAME(name) void name(void) {}

NAME(_Unwind_Backtrace)
NAME(_Unwind_DeleteException)
NAME(_Unwind_FindEnclosingFunction)
NAME(_Unwind_ForcedUnwind)
NAME(_Unwind_GetCFA)
NAME(_Unwind_GetDataRelBase)
NAME(_Unwind_GetGR)
NAME(_Unwind_GetIP)
NAME(_Unwind_GetIPInfo)
NAME(_Unwind_GetLanguageSpecificData)
NAME(_Unwind_GetRegionStart)
NAME(_Unwind_GetTextRelBase)
NAME(_Unwind_RaiseException)
NAME(_Unwind_Resume)
NAME(_Unwind_Resume_or_Rethrow)
NAME(_Unwind_SetGR)
NAME(_Unwind_SetIP)
