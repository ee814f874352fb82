/* The kernel's lzo, lzo-rle and 842 as a filter. Requests on stdin, answers on stdout:
 *
 *   request: one byte, what to do; four bytes, length (little-endian); that many bytes
 *     'L' encode lzo, 'R' encode lzo-rle, 'E' encode 842
 *     'l' decode lzo or lzo-rle, 'e' decode 842
 *   answer: one byte, 0 for success; four bytes, length; that many bytes
 *     'T' encode and decode three times with each of the three; the answer is text, for each its
 *     encoded length and the least time to encode and to decode, in nanoseconds
 */
#include "shim.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <linux/lzo.h>
#include <linux/sw842.h>

int shim_nothing;

u32 crc32_be(u32 crc, const u8 *bytes, size_t len)
{
	static u32 table[256];
	if (!table[1])
		for (u32 n = 0; n < 256; n++) {
			u32 c = n << 24;
			for (int bit = 0; bit < 8; bit++)
				c = c & 0x80000000u ? c << 1 ^ 0x04c11db7u : c << 1;
			table[n] = c;
		}
	while (len--)
		crc = crc << 8 ^ table[(crc >> 24 ^ *bytes++) & 255];
	return crc;
}

enum { PAGE = 4096, ROOM = 1 << 16 };
static u8 in[ROOM], out[ROOM], work[1 << 17] __attribute__((aligned(64)));

static int run(int what, const u8 *from, size_t len, u8 *to, size_t *to_len)
{
	unsigned int out_len = ROOM;
	int result = -1;
	*to_len = ROOM;
	switch (what) {
	case 'L': result = lzo1x_1_compress(from, len, to, to_len, work); break;
	case 'R': result = lzorle1x_1_compress(from, len, to, to_len, work); break;
	case 'l':
		*to_len = PAGE;
		result = lzo1x_decompress_safe(from, len, to, to_len);
		break;
	case 'E':
		result = sw842_compress(from, len, to, &out_len, work);
		*to_len = out_len;
		break;
	case 'e':
		out_len = PAGE;
		result = sw842_decompress(from, len, to, &out_len);
		*to_len = out_len;
		break;
	}
	return result;
}

static double least_ns(int what, const u8 *from, size_t len, u8 *to, size_t *to_len)
{
	double least = 1e18;
	for (int pass = 0; pass < 3; pass++) {
		struct timespec a, b;
		clock_gettime(CLOCK_MONOTONIC, &a);
		run(what, from, len, to, to_len);
		clock_gettime(CLOCK_MONOTONIC, &b);
		double ns = (b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec);
		least = ns < least ? ns : least;
	}
	return least;
}

static size_t times(const u8 *page, size_t len, u8 *answer)
{
	static u8 coded[ROOM], back[ROOM];
	static const char codecs[3][2] = { { 'L', 'l' }, { 'R', 'l' }, { 'E', 'e' } };
	size_t used = 0;
	for (int n = 0; n < 3; n++) {
		size_t coded_len, back_len;
		double encode = least_ns(codecs[n][0], page, len, coded, &coded_len);
		double decode = least_ns(codecs[n][1], coded, coded_len, back, &back_len);
		used += (size_t)sprintf((char *)answer + used, "%zu %.0f %.0f ", coded_len, encode,
					decode);
	}
	return used;
}

int main(void)
{
	u8 head[5];
	while (fread(head, 1, 5, stdin) == 5) {
		u32 len = get_unaligned_le32(head + 1), answer_len;
		size_t out_len;
		if (len > ROOM || fread(in, 1, len, stdin) != len)
			return 1;
		if (head[0] == 'T') {
			out_len = times(in, len, out);
			head[0] = 0;
		} else {
			head[0] = run(head[0], in, len, out, &out_len) == 0 ? 0 : 1;
		}
		answer_len = head[0] == 0 ? (u32)out_len : 0;
		memcpy(head + 1, &answer_len, 4);
		fwrite(head, 1, 5, stdout);
		fwrite(out, 1, answer_len, stdout);
		fflush(stdout);
	}
	return 0;
}
