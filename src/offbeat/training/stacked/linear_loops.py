"""Compiled SGD of one linear layer with cross entropy on a CPU: all steps of a job in one loop (Numba).

For this model, library calls take as long as their arithmetic, and copying batches takes longer. The loop reads
examples in place, four at a time, and the weights stay in the core's cache for all steps. A client's result depends on
its own job only. `training/stacked/compiled_linear.py` decides when to use it.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

# mypy: ignore-errors

# sums may be taken in any order, which is what makes them quick; what is not a number stays none
FAST_MATH = {"reassoc", "contract", "arcp", "nsz"}
compiled = partial(njit, fastmath=FAST_MATH, nogil=True, error_model="numpy")
# Within each other, always: a part that is called is another one in the process that compiles than in one that finds
# all of it compiled already, and so are its last bits.
part = compiled(forceinline=True)

CACHE_LINE = 64  # bytes that a core reads and writes together
M32 = np.uint64(0xFFFFFFFF)


@intrinsic
def _pointer(_, address, like):
    """Return a pointer to numbers of the dtype of `like`."""

    def cast(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.CPointer(like.dtype)))

    return types.CPointer(like.dtype)(address, like), cast


@part
def seed_generator(state, seed):
    """Seed torch's generator on the host, MT19937, with 32 bits."""
    s = np.uint64(seed) & M32
    state[0] = s
    for i in range(1, 624):
        s = ((s ^ (s >> np.uint64(30))) * np.uint64(1812433253) + np.uint64(i)) & M32
        state[i] = s


@part
def twist(state):
    """Compute the next 624 numbers of the generator."""
    for k in range(624):
        y = (np.uint64(state[k]) & np.uint64(0x80000000)) | (np.uint64(state[(k + 1) % 624]) & np.uint64(0x7FFFFFFF))
        odd = np.uint64(0x9908B0DF) if y & np.uint64(1) else np.uint64(0)
        state[k] = np.uint64(state[(k + 397) % 624]) ^ (y >> np.uint64(1)) ^ odd


@part
def shuffle(state, used, order, n):
    """Draw torch.randperm(n) with a generator of which `used` numbers are used; return the new count."""
    for i in range(n):
        order[i] = i
    for i in range(n - 1):
        if used == 624:
            twist(state)
            used = 0
        y = np.uint64(state[used])
        used += 1
        y ^= y >> np.uint64(11)
        y ^= (y << np.uint64(7)) & np.uint64(0x9D2C5680)
        y ^= (y << np.uint64(15)) & np.uint64(0xEFC60000)
        y ^= y >> np.uint64(18)
        z = i + np.int64((y & M32) % np.uint64(n - i))
        order[i], order[z] = order[z], order[i]
    return used


@compiled(cache=True)
def permutations(seed, n, epochs):
    """Return one permutation per epoch, one after the other."""
    state, used = np.empty(624, np.uint32), 624
    order = np.empty(n * epochs, np.int64)
    seed_generator(state, seed)
    for epoch in range(epochs):
        used = shuffle(state, used, order[epoch * n : (epoch + 1) * n], n)
    return order


@part
def linear_outputs(x, chosen, size, w, out):
    """Compute out[i, c] = x[chosen[i]] · w[c] for four examples and five classes at a time (twenty registers)."""
    classes, features = w.shape
    zero = w.dtype.type(0)
    for i in range(0, size, 4):
        x0, x1 = x[chosen[i]], x[chosen[min(i + 1, size - 1)]]
        x2, x3 = x[chosen[min(i + 2, size - 1)]], x[chosen[min(i + 3, size - 1)]]
        fives = classes // 5 * 5
        for c in range(0, fives, 5):
            w0, w1, w2, w3, w4 = w[c], w[c + 1], w[c + 2], w[c + 3], w[c + 4]
            a00 = a10 = a20 = a30 = a01 = a11 = a21 = a31 = a02 = a12 = zero
            a22 = a32 = a03 = a13 = a23 = a33 = a04 = a14 = a24 = a34 = zero
            for k in range(features):
                v0, v1, v2, v3 = x0[k], x1[k], x2[k], x3[k]
                u0, u1, u2, u3, u4 = w0[k], w1[k], w2[k], w3[k], w4[k]
                a00 += v0 * u0
                a10 += v1 * u0
                a20 += v2 * u0
                a30 += v3 * u0
                a01 += v0 * u1
                a11 += v1 * u1
                a21 += v2 * u1
                a31 += v3 * u1
                a02 += v0 * u2
                a12 += v1 * u2
                a22 += v2 * u2
                a32 += v3 * u2
                a03 += v0 * u3
                a13 += v1 * u3
                a23 += v2 * u3
                a33 += v3 * u3
                a04 += v0 * u4
                a14 += v1 * u4
                a24 += v2 * u4
                a34 += v3 * u4
            out[i, c], out[i, c + 1], out[i, c + 2], out[i, c + 3], out[i, c + 4] = a00, a01, a02, a03, a04
            out[i + 1, c], out[i + 1, c + 1], out[i + 1, c + 2], out[i + 1, c + 3], out[i + 1, c + 4] = (
                a10, a11, a12, a13, a14,
            )  # fmt: skip
            out[i + 2, c], out[i + 2, c + 1], out[i + 2, c + 2], out[i + 2, c + 3], out[i + 2, c + 4] = (
                a20, a21, a22, a23, a24,
            )  # fmt: skip
            out[i + 3, c], out[i + 3, c + 1], out[i + 3, c + 2], out[i + 3, c + 3], out[i + 3, c + 4] = (
                a30, a31, a32, a33, a34,
            )  # fmt: skip
        for c in range(fives, classes):
            row = w[c]
            a0 = a1 = a2 = a3 = zero
            for k in range(features):
                u = row[k]
                a0 += x0[k] * u
                a1 += x1[k] * u
                a2 += x2[k] * u
                a3 += x3[k] * u
            out[i, c], out[i + 1, c], out[i + 2, c], out[i + 3, c] = a0, a1, a2, a3


@part
def softmax_errors(out, bias, y, chosen, size, rate):
    """Replace outputs without biases by their cross-entropy gradient, times the rate, over the batch size.

    Returns False for a label that is no class.
    """
    classes = len(bias)
    share = rate / out.dtype.type(size)
    for i in range(size):
        row = out[i]
        most = row[0] + bias[0]
        for c in range(classes):
            row[c] += bias[c]
            most = max(most, row[c])
        total = most - most
        for c in range(classes):
            row[c] = np.exp(row[c] - most)
            total += row[c]
        for c in range(classes):
            row[c] *= share / total
        label = y[chosen[i]]
        if not 0 <= label < classes:
            return False
        row[label] -= share
    out[size : size + 3] = 0  # what fills the last four up
    return True


@part
def weight_gradient(x, chosen, size, g, w):
    """Compute w[c] = sum_i g[i, c] x[chosen[i]] for four examples and five classes at a time."""
    classes, features = w.shape
    w[:] = 0
    for i in range(0, size, 4):
        x0, x1 = x[chosen[i]], x[chosen[min(i + 1, size - 1)]]
        x2, x3 = x[chosen[min(i + 2, size - 1)]], x[chosen[min(i + 3, size - 1)]]
        g0, g1, g2, g3 = g[i], g[i + 1], g[i + 2], g[i + 3]
        fives = classes // 5 * 5
        for c in range(0, fives, 5):
            w0, w1, w2, w3, w4 = w[c], w[c + 1], w[c + 2], w[c + 3], w[c + 4]
            g00, g01, g02, g03, g04 = g0[c], g0[c + 1], g0[c + 2], g0[c + 3], g0[c + 4]
            g10, g11, g12, g13, g14 = g1[c], g1[c + 1], g1[c + 2], g1[c + 3], g1[c + 4]
            g20, g21, g22, g23, g24 = g2[c], g2[c + 1], g2[c + 2], g2[c + 3], g2[c + 4]
            g30, g31, g32, g33, g34 = g3[c], g3[c + 1], g3[c + 2], g3[c + 3], g3[c + 4]
            for k in range(features):
                v0, v1, v2, v3 = x0[k], x1[k], x2[k], x3[k]
                w0[k] += g00 * v0 + g10 * v1 + g20 * v2 + g30 * v3
                w1[k] += g01 * v0 + g11 * v1 + g21 * v2 + g31 * v3
                w2[k] += g02 * v0 + g12 * v1 + g22 * v2 + g32 * v3
                w3[k] += g03 * v0 + g13 * v1 + g23 * v2 + g33 * v3
                w4[k] += g04 * v0 + g14 * v1 + g24 * v2 + g34 * v3
        for c in range(fives, classes):
            row, p0, p1, p2, p3 = w[c], g0[c], g1[c], g2[c], g3[c]
            for k in range(features):
                row[k] += p0 * x0[k] + p1 * x1[k] + p2 * x2[k] + p3 * x3[k]


@part
def train_job(x, y, rows, n, steps, batch, seed, vector, base, layer, rate, pull, out, grad):
    """Take all steps of one client in place; return False if an example, row or label does not exist.

    `rows` are the rows of its examples (none: consecutive). `pull` draws the vector back to its base. Steps are summed
    in `grad`, which is as long as the vector, and applied at once: repeated small additions would round more often.
    """
    weight, biased, classes, features = layer
    end, after = weight + classes * features, biased + classes
    w, step_of_w = vector[weight:end].reshape((classes, features)), grad[weight:end].reshape((classes, features))
    bias = vector[biased:after] if biased >= 0 else np.zeros(classes, vector.dtype)
    if not len(rows) and n > len(x):
        return False
    state, used = np.empty(624, np.uint32), 624
    order = np.empty(n, np.int64)
    each = (n + batch - 1) // batch  # steps of an epoch
    seed_generator(state, seed)
    for step in range(steps):
        at = step % each * batch
        if at == 0:
            used = shuffle(state, used, order, n)
            if len(rows):
                for i in range(n):
                    order[i] = rows[order[i]]
                    if not 0 <= order[i] < len(x):
                        return False
        size = min(batch, n - at)
        chosen = order[at : at + size]
        linear_outputs(x, chosen, size, w, out)
        if not softmax_errors(out, bias, y, chosen, size, rate):
            return False
        weight_gradient(x, chosen, size, out, step_of_w)
        if biased >= 0:
            grad[biased:after] = 0
            for i in range(size):
                for c in range(classes):
                    grad[biased + c] += out[i, c]
        if pull:
            for k in range(len(vector)):
                grad[k] += rate * pull * (vector[k] - base[k])
        for k in range(len(vector)):
            vector[k] -= grad[k]
    return True


@compiled(cache=True)
def train_jobs(table, rates, pull, batch, layer, like):
    """Train every job of a table; return -1, or the first job whose examples, rows or labels do not exist.

    A row has the addresses of examples, labels and rows (or 0), the number of stored and of own examples, steps, seed,
    and the addresses of vector and base. `layer`: start of weights and biases (-1: none) in a vector, outputs, inputs;
    `like` has the dtype of the vectors.
    """
    _, biased, classes, features = layer
    length = classes * features + (classes if biased >= 0 else 0)
    out, grad = np.empty((batch + 3, classes), like.dtype), np.empty(length + CACHE_LINE // like.itemsize, like.dtype)
    grad = grad[-grad.ctypes.data % CACHE_LINE // like.itemsize :][:length]  # as vectors lie: within lines of memory
    none = np.empty(0, np.int64)
    for i in range(len(table)):
        there, n = table[i, 3], table[i, 4]
        x = carray(_pointer(table[i, 0], like), (there, features))
        y = carray(_pointer(table[i, 1], none), (there,))
        rows = carray(_pointer(table[i, 2], none), (n,)) if table[i, 2] else none
        vector = carray(_pointer(table[i, 7], like), (length,))
        base = carray(_pointer(table[i, 8], like), (length,))
        sound = train_job(
            x, y, rows, n, table[i, 5], batch, table[i, 6], vector, base, layer,
            like.dtype.type(rates[i]), like.dtype.type(pull), out, grad,
        )  # fmt: skip
        if not sound:
            return i
    return -1
