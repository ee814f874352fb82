/* What the kernel's lib/lzo and lib/842 ask of the kernel, for a program in user space. Written
 * for this purpose from the names and meanings that those files use; no kernel code. */
#ifndef SHIM_H
#define SHIM_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

/* The kernel defines one of the two, libc both. */
#undef __BIG_ENDIAN

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;
typedef uint16_t __le16;
typedef uint32_t __le32;
typedef uint64_t __le64;
typedef uint16_t __be16;
typedef uint32_t __be32;
typedef uint64_t __be64;

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#ifndef noinline
#define noinline __attribute__((noinline))
#endif
#define __init
#define __exit
#define __ro_after_init
#define __read_mostly
#define __force
#define fallthrough __attribute__((fallthrough))

#define EXPORT_SYMBOL_GPL(x) extern int shim_nothing
#define EXPORT_SYMBOL(x) extern int shim_nothing
#define MODULE_LICENSE(x) extern int shim_nothing
#define MODULE_DESCRIPTION(x) extern int shim_nothing
#define MODULE_AUTHOR(x) extern int shim_nothing
#define MODULE_PARM_DESC(x, y) extern int shim_nothing
#define module_param_named(a, b, c, d) extern int shim_nothing
#define module_param(a, b, c) extern int shim_nothing
#define module_init(f) __attribute__((constructor)) static void shim_##f(void) { f(); }
#define module_exit(f) extern int shim_nothing

#define pr_err(...) ((void)0)
#define pr_warn(...) ((void)0)
#define pr_info(...) ((void)0)
#define pr_debug(...) ((void)0)
#define pr_err_ratelimited(...) ((void)0)
#define WARN(cond, ...) (!!(cond))
#define WARN_ON(cond) (!!(cond))
#define BUILD_BUG_ON(cond) _Static_assert(!(cond), "kernel codec")

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min_t(t, a, b) ((t)(a) < (t)(b) ? (t)(a) : (t)(b))
#define max_t(t, a, b) ((t)(a) > (t)(b) ? (t)(a) : (t)(b))
#define round_down(x, y) ((x) - (x) % (y))
#define round_up(x, y) (((x) + (y) - 1) / (y) * (y))
#define DIV_ROUND_UP(x, y) (((x) + (y) - 1) / (y))
#define BITS_PER_LONG 64
#define GENMASK_ULL(h, l) ((~0ULL >> (63 - (h))) & (~0ULL << (l)))
#define GENMASK(h, l) GENMASK_ULL(h, l)
#define IS_ALIGNED(x, a) (((x) % (a)) == 0)
#define PTR_ALIGN(p, a) ((void *)round_up((uintptr_t)(p), (a)))

static inline u16 cpu_to_be16(u16 v) { return __builtin_bswap16(v); }
static inline u32 cpu_to_be32(u32 v) { return __builtin_bswap32(v); }
static inline u64 cpu_to_be64(u64 v) { return __builtin_bswap64(v); }
#define be16_to_cpu cpu_to_be16
#define be32_to_cpu cpu_to_be32
#define be64_to_cpu cpu_to_be64
static inline u16 cpu_to_le16(u16 v) { return v; }
static inline u32 cpu_to_le32(u32 v) { return v; }
#define le16_to_cpu cpu_to_le16
#define le32_to_cpu cpu_to_le32

#define get_unaligned(p) ({ __typeof__(*(p) + 0) v_; \
	_Static_assert(sizeof(v_) >= sizeof(*(p)), ""); \
	__typeof__(*(p)) w_; memcpy((void *)&w_, (const void *)(p), sizeof(*(p))); v_ = w_; v_; })
#define put_unaligned(v, p) ({ __typeof__(*(p)) w_ = (v); memcpy((void *)(p), &w_, sizeof(w_)); })
static inline u16 get_unaligned_le16(const void *p) { u16 v; memcpy(&v, p, 2); return v; }
static inline u32 get_unaligned_le32(const void *p) { u32 v; memcpy(&v, p, 4); return v; }
static inline u64 get_unaligned_le64(const void *p) { u64 v; memcpy(&v, p, 8); return v; }
static inline void put_unaligned_le16(u16 v, void *p) { memcpy(p, &v, 2); }
static inline void put_unaligned_le32(u32 v, void *p) { memcpy(p, &v, 4); }
static inline u16 get_unaligned_be16(const void *p) { return be16_to_cpu(get_unaligned_le16(p)); }
static inline u32 get_unaligned_be32(const void *p) { return be32_to_cpu(get_unaligned_le32(p)); }
static inline u64 get_unaligned_be64(const void *p) { return be64_to_cpu(get_unaligned_le64(p)); }
static inline void put_unaligned_be64(u64 v, void *p) { v = cpu_to_be64(v); memcpy(p, &v, 8); }

/* The CRC of IEEE 802.3, most significant bit first, without inversions. */
u32 crc32_be(u32 crc, const u8 *bytes, size_t len);

/* Chained hash tables: one pointer a bucket, nodes linked through both neighbours. */
struct hlist_node { struct hlist_node *next, **pprev; };
struct hlist_head { struct hlist_node *first; };

static inline void shim_hash_add(struct hlist_head *head, struct hlist_node *node)
{
	node->next = head->first;
	if (head->first)
		head->first->pprev = &node->next;
	head->first = node;
	node->pprev = &head->first;
}

static inline void shim_hash_del(struct hlist_node *node)
{
	if (!node->pprev)
		return;
	*node->pprev = node->next;
	if (node->next)
		node->next->pprev = node->pprev;
	node->next = NULL;
	node->pprev = NULL;
}

static inline u32 shim_bucket(u64 key, size_t key_bytes, size_t buckets)
{
	u32 bits = (u32)__builtin_ctzl(buckets);
	if (key_bytes <= 4)
		return (u32)((u32)key * 0x61C88647u) >> (32 - bits);
	return (u32)((key * 0x61C8864680B583EBull) >> (64 - bits));
}

#define container_of(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))
#define DECLARE_HASHTABLE(name, bits) struct hlist_head name[1 << (bits)]
#define DEFINE_HASHTABLE(name, bits) struct hlist_head name[1 << (bits)] = { { NULL } }
#define hash_init(table) memset(table, 0, sizeof(table))
#define INIT_HLIST_NODE(n) ((n)->next = NULL, (n)->pprev = NULL)
#define hash_add(table, node, key) \
	shim_hash_add(&(table)[shim_bucket(key, sizeof(key), ARRAY_SIZE(table))], node)
#define hash_del(node) shim_hash_del(node)
#define shim_entry(p, type, member) ((p) ? container_of(p, type, member) : NULL)
#define hash_for_each_possible(table, obj, member, key) \
	for (obj = shim_entry((table)[shim_bucket(key, sizeof(key), ARRAY_SIZE(table))].first, \
			      __typeof__(*(obj)), member); \
	     obj; obj = shim_entry((obj)->member.next, __typeof__(*(obj)), member))

/* Counters in a debug file system, which there is none of. */
typedef struct { int counter; } atomic_t;
#define atomic_inc(p) ((p)->counter++)
#define atomic_set(p, v) ((p)->counter = (v))
#define atomic_read(p) ((p)->counter)
struct dentry;
typedef mode_t umode_t;
#define S_IRUGO 0444
static inline bool debugfs_initialized(void) { return false; }
static inline struct dentry *debugfs_create_dir(const char *n, struct dentry *d)
{ (void)n; (void)d; return NULL; }
static inline void debugfs_create_atomic_t(const char *n, int m, struct dentry *d, atomic_t *v)
{ (void)n; (void)m; (void)d; (void)v; }
static inline void debugfs_remove_recursive(struct dentry *d) { (void)d; }
#define IS_ERR(p) (!(p))

#endif
